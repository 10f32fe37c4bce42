"""Where results of calls are, and values that were scattered, and that they go when nobody refers to them any more."""

from __future__ import annotations

import json
import mmap
import queue
import tempfile
import threading
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import _jobs, _node
from ._errors import NodeError
from ._remote import HERE, INLINE_BYTES, LOST

# What is released within this time goes together.
_TOGETHER_SECONDS = 0.05
# Names of results in one message: a line of the worker's to its node has at most 64 KiB.
_NAMES = 400


# How a node has got what it keeps: a worker of the pool has made it there; it was brought for a call; the program has put it there.
RESULT, BROUGHT, PUT = range(3)


class Keeper(NamedTuple):
    """Who has a result or a value for a pool."""

    node: str
    engine: Any
    how: int
    #: The pool's job, which is another one after its node was lost.
    job: str


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
            self.keepers.add(Keeper(node, engine, BROUGHT, engine.job))

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
    place.keepers.add(Keeper(node, engine, RESULT, engine.job))
    return place


class Scattered(Place):
    """A large value of the program's, which has it in a file without a name for as long as its future is there. For each pool whose calls
    are given it, it is put into this machine's node, from which other nodes take it."""

    __slots__ = ("_file", "_putting")

    def __init__(self, file: Any, size: int, origin: str, released: "Optional[Released]") -> None:
        super().__init__(None, "", size, origin, released)
        self._file: Any = file
        self._putting = threading.Lock()

    def read(self) -> memoryview:
        """The value's payload. What is written there changes nothing elsewhere."""
        return memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_COPY))

    def is_put(self, engine: Any) -> bool:
        """Whether a pool has it in this machine's node."""
        return self._keeper(engine) in self.keepers

    def put(self, node: Any, engine: Any) -> None:
        """Has it in this machine's node for a pool. Fails with NodeError if the node does not take it."""
        with self._putting:
            keeper = self._keeper(engine)
            if keeper not in self.keepers:
                target = "/v1/blobs?pool=" + keeper.job
                stored = _jobs.again(lambda: _node.request(node.path, "PUT", target, self._file, length=self.size), node.make_run_again)
                self.hash = stored["hash"]
                self.keepers.add(keeper)

    def _keeper(self, engine: Any) -> Keeper:
        return Keeper(self.origin, engine, PUT, engine.job)

    def once_more(self) -> "Scattered":
        """The same value, of which no node has anything."""
        return Scattered(self._file, self.size, self.origin, self._released)


def scattered(parts: List[Any], size: int, origin: str, released: "Released") -> Place:
    """A value of the program's: a short one goes with each call that is given it. Fails with NodeError if there is no room for it."""
    if size <= INLINE_BYTES:
        return Place(b"".join(parts), "", size, "", None)
    try:
        file = tempfile.TemporaryFile()
        for part in parts:
            file.write(part)
        file.flush()
    except OSError as error:
        text = "a value of %d bytes cannot be scattered: %s\nhint: the variable TMPDIR names a directory with room for it"
        raise NodeError(text % (size, error)) from None
    return Scattered(file, size, origin, released)


def near(places: Iterable[Place]) -> Dict[str, int]:
    """How many bytes of what a call is given are on which nodes."""
    found: Dict[str, int] = {}
    for place in places:
        for node in place.nodes():
            found[node] = found.get(node, 0) + place.size
    return found


class Released:
    """What is not needed any more. A thread tells those who keep it; `path` is the socket of this machine's node."""

    def __init__(self, path: str) -> None:
        self._path = path
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
            self._tell_of(gone)
            # Nothing is held while there is nothing to do.
            del gone

    def _tell_of(self, gone: List[Tuple[str, Set[Keeper]]]) -> None:
        names: Dict[Tuple[Any, str], List[Tuple[int, str]]] = {}
        for hash, keepers in gone:
            for node, engine, how, job in keepers:
                if how == PUT:
                    self._withdraw(hash, job)
                else:
                    names.setdefault((engine, node), []).append((how, hash))
        for (engine, node), alike in names.items():
            for first in range(0, len(alike), _NAMES):
                engine.release(node, _message(alike[first : first + _NAMES]))

    def _withdraw(self, hash: str, job: str) -> None:
        """Takes a value from this machine's node; all that is there for a pool goes with that, too."""
        try:
            _node.request(self._path, "DELETE", "/v1/blobs/%s?pool=%s" % (hash, job))
        except (OSError, NodeError):
            pass


def _message(alike: List[Tuple[int, str]]) -> bytes:
    """What a worker tells its node (`src/worker/persistent/keep.rs`)."""
    results = [hash for how, hash in alike if how == RESULT]
    brought = [hash for how, hash in alike if how == BROUGHT]
    return json.dumps({"release": {"results": results, "brought": brought}}).encode()
