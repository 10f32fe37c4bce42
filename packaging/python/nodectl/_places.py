"""Where results of calls are, and that they go when nobody refers to them any more."""

from __future__ import annotations

import json
import queue
import threading
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ._remote import HERE, LOST

# What is released within this time goes together.
_TOGETHER_SECONDS = 0.05
# Names of results in one message: a line of the worker's to its node has at most 64 KiB.
_NAMES = 400


class Keeper(NamedTuple):
    """Who has a result for a pool."""

    node: str
    engine: Any
    #: A worker of the pool has made it there; else it was brought for a call.
    is_result: bool


class Place:
    """Where a result is. When this goes, so does what nodes have of it."""

    __slots__ = ("content", "hash", "size", "origin", "keepers", "_released")

    def __init__(self, content: Optional[bytes], hash: str, size: int, origin: str, released: "Optional[Released]") -> None:
        #: What there is of it, if that is short; else the hash of its blob, its bytes, and the node that has made it.
        self.content: Optional[bytes] = content
        self.hash: str = hash
        self.size: int = size
        self.origin: str = origin
        self.keepers: Set[Keeper] = set()
        self._released = released

    def nodes(self) -> List[str]:
        """Those that have it, its origin first."""
        others = {keeper.node for keeper in list(self.keepers)} - {self.origin}
        return [self.origin, *sorted(others)] if self.content is None else []

    def brought_to(self, node: str, engine: Any) -> None:
        """A call of that pool was given it on a node."""
        if self.content is None:
            self.keepers.add(Keeper(node, engine, False))

    def __del__(self) -> None:
        # Wherever the interpreter is at the moment: no lock may be taken here.
        if self._released is not None and self.keepers:
            self._released.put(self.hash, self.keepers)


def of_answer(value: Any, engine: Any, released: "Released") -> Optional[Place]:
    """What a worker has answered; None if what the call is given is lost."""
    if value[0] == LOST:
        return None
    if value[0] == HERE:
        return Place(value[1], "", len(value[1]), "", None)
    _, size, hash, node = value
    place = Place(None, hash, size, node, released)
    place.keepers.add(Keeper(node, engine, True))
    return place


def scattered(hash: str, size: int, node: str, released: "Released") -> Place:
    """A value that the program has put into its node."""
    return Place(None, hash, size, node, released)


def near(places: Iterable[Place]) -> Dict[str, int]:
    """How many bytes of what a call is given are on which nodes."""
    found: Dict[str, int] = {}
    for place in places:
        for node in place.nodes():
            found[node] = found.get(node, 0) + place.size
    return found


class Released:
    """What is not needed any more. A thread tells those who keep it."""

    def __init__(self) -> None:
        # Its `put` may interrupt itself.
        self._queue: "queue.SimpleQueue[Tuple[str, Set[Keeper]]]" = queue.SimpleQueue()
        threading.Thread(target=self._tell, name="nodectl-released", daemon=True).start()

    def put(self, hash: str, keepers: Set[Keeper]) -> None:
        self._queue.put((hash, keepers))

    def _tell(self) -> None:
        while True:
            gone = [self._queue.get()]
            time.sleep(_TOGETHER_SECONDS)
            while not self._queue.empty():
                gone.append(self._queue.get())
            names: Dict[Tuple[Any, str], List[Tuple[bool, str]]] = {}
            for hash, keepers in gone:
                for node, engine, is_result in keepers:
                    names.setdefault((engine, node), []).append((is_result, hash))
            for (engine, node), alike in names.items():
                for first in range(0, len(alike), _NAMES):
                    engine.release(node, _message(alike[first : first + _NAMES]))
            # Nothing is held while there is nothing to do.
            del gone, names, alike, engine, keepers


def _message(alike: List[Tuple[bool, str]]) -> bytes:
    """What a worker tells its node (`src/worker/persistent/keep.rs`)."""
    results = [hash for is_result, hash in alike if is_result]
    brought = [hash for is_result, hash in alike if not is_result]
    return json.dumps({"release": {"results": results, "brought": brought}}).encode()
