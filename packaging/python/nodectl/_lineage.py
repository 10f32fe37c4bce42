"""How a result of a call is made, to make it again if it is lost."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, NamedTuple, Union


class Pickled(NamedTuple):
    """A call, without the results that it is given."""

    digest: bytes
    function: bytes
    arguments: bytes


class _Past(NamedTuple):
    """A future that was needed: itself, as long as somebody else refers to it, or how it is made."""

    future: "weakref.ref[Any]"
    made_by: "Lineage"


class Lineage:
    """A call, and what it is given. It holds the futures of that until it has been given them; then only how they were made, so that what
    lies on nodes for them can go."""

    __slots__ = ("name", "call", "needs", "options")

    def __init__(self, name: str, call: Pickled, needs: Dict[str, Any], options: Any) -> None:
        self.name: str = name
        self.call: Pickled = call
        self.needs: Dict[str, Union[_Past, Any]] = needs
        self.options: Any = options

    def forget_futures(self) -> None:
        """The call is done. Of what nothing can make again the futures are held on."""
        self.needs = {name: _past(need) for name, need in self.needs.items()}

    def futures(self, make: "Callable[[Lineage], Any]") -> Dict[str, Any]:
        """What the call is given, held from now on. `make` gives a new future of one that is gone."""
        for name, need in self.needs.items():
            if isinstance(need, _Past):
                self.needs[name] = need.future() or make(need.made_by)
        return self.needs


def _past(need: Any) -> Any:
    if isinstance(need, _Past) or need._made_by is None:
        return need
    return _Past(weakref.ref(need), need._made_by)
