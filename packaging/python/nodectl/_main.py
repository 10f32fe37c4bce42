"""Stand-ins for what workers have under these names (`shim.py`): pickles for workers refer to them."""

from __future__ import annotations

from typing import Any, Dict


def main_globals() -> Dict[str, Any]:
    """The variables of the program's main module, on a worker."""
    raise NotImplementedError("workers have this")


def renewed(variables: Dict[str, Any]) -> Dict[str, Any]:
    """Those of the program's variables that replace the worker's."""
    raise NotImplementedError("workers have this")


def same(value: Any) -> Any:
    """What a pickle has in the place of something that is of use to the program only."""
    raise NotImplementedError("workers have this")


def local(function: Any) -> Any:
    """A function whose calls run on nodes, on one of them."""
    raise NotImplementedError("workers have this")


def given(name: str) -> Any:
    """The result of another call, on a worker (`_remote.py`)."""
    raise NotImplementedError("workers have this")


def shared(key: str) -> Any:
    """An array that several batches use (`_batches.py`)."""
    raise NotImplementedError("workers have this")
