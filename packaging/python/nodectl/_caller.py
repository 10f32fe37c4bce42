"""The worker of pools that call functions. The module travels by value: workers need no package of ours."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple


class Caller:
    """Calls any function. Functions that came as bytes are made once."""

    def __init__(self, initializer: Optional[Callable[..., Any]], initargs: Tuple[Any, ...]) -> None:
        self.functions: Dict[bytes, Any] = {}
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if isinstance(function, bytes):
            made = self.functions.get(function)
            if made is None:
                import sys

                if len(self.functions) >= 256:
                    self.functions.clear()
                made = self.functions[function] = sys.modules["nodectl._main"].loads(function)
            function = made
        return function(*args, **kwargs)
