"""Series of tasks: `map`, `imap`, `imap_unordered`, futures. Each takes its items from the caller's iterable, in the caller's
thread, no faster than the bounds below allow."""

from __future__ import annotations

import sys
import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import PENDING, RUNNING
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Tuple, Union

from ._engine import Engine
from ._frames import Payload, size_of

#: The most items of a series between the iterable and whoever reads the results.
WINDOW_ITEMS = 1024
#: The most bytes of their arguments and results, where more than one item a worker is taken.
WINDOW_BYTES = 64 << 20
# What a series begins with, before anything is known of the size of results.
_FIRST_ITEMS = 16
# What is pickled before it is sent.
_BATCH_ITEMS = 256
_BATCH_BYTES = 256 << 10


def as_call(item: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """(args, kwargs) of an item: `{'args': [...], 'kwargs': {...}}` with either or both, or any other value for one argument."""
    if type(item) is dict and item and item.keys() <= {"args", "kwargs"}:
        return tuple(item.get("args", ())), dict(item.get("kwargs", {}))
    return (item,), {}


class Call:
    """A series of tasks. What has a lower-case name without underscore is set with the engine's lock held."""

    #: Somebody waits for it who does not drive the stream.
    is_future = False
    #: It is told when a worker has a task of its.
    wants_start = False
    #: How many bytes of what it is given are on which nodes.
    near: Dict[str, int] = {}
    #: The most items between the iterable and the reader, where the caller has said so.
    most: Optional[int] = None

    def __init__(self, engine: Engine, pickler: Any, items: Iterable[Tuple[Any, Any]]) -> None:
        self.engine = engine
        self.pickler = pickler
        self.items: Iterator[Tuple[Any, Any]] = iter(items)
        # A pool that closes takes what is left of a series in a thread of its own.
        self._feeding = threading.Lock()
        self.exhausted: bool = False
        #: All items are taken and sent at once, whether their results are read or not.
        self.takes_all: bool = False
        #: Something happened since the last look.
        self.changed: bool = False
        self.taken: int = 0
        self.ended: int = 0
        #: Of arguments under way.
        self.bytes: int = 0
        self.largest_result: int = 0

    def held(self) -> int:
        """Items between the iterable and the reader."""
        return self.taken - self.ended

    def held_bytes(self) -> int:
        return self.bytes + self.largest_result * (self.taken - self.ended)

    def has_room(self) -> bool:
        held, workers = self.held(), self.engine.workers
        if self.most is not None:
            return held < self.most
        if held <= workers or self.takes_all:
            return True
        limit = min(WINDOW_ITEMS, _FIRST_ITEMS + 2 * self.ended)
        return held < max(limit, 2 * workers) and self.held_bytes() < WINDOW_BYTES

    def feed(self) -> None:
        """Takes items while there is room, and sends them."""
        with self._feeding:
            self._feed()

    def take_all(self) -> None:
        """Takes and sends the rest, whoever reads the results."""
        self.takes_all = True
        self.feed()

    def _feed(self) -> None:
        while not self.exhausted and self.has_room():
            batch: List[Tuple[int, Payload]] = []
            # Items of which there is no task: the iterable failed, or its item cannot be pickled.
            failed: List[Tuple[int, BaseException]] = []
            size = 0
            items, call, taken = self.items, self.pickler.call, self.taken
            while len(batch) < _BATCH_ITEMS and size < _BATCH_BYTES and self.has_room():
                try:
                    args, kwargs = next(items)
                except StopIteration:
                    self.exhausted = True
                    break
                except Exception as error:
                    self.exhausted = True
                    failed.append((self.taken, error))
                    self.taken += 1
                    break
                try:
                    payload = call(args, kwargs)
                except Exception as error:
                    failed.append((self.taken, error))
                    self.taken += 1
                    continue
                length = len(payload) if type(payload) is bytes else size_of(payload)
                batch.append((self.taken, payload))
                self.taken += 1
                self.bytes += length
                size += length
            self.prepare(self.taken - taken)
            if batch:
                self.engine.add(self, batch)
            if failed:
                self.engine.fail(self, failed)

    def prepare(self, count: int) -> None:
        """Before that many more tasks are sent."""

    def is_complete(self) -> bool:
        return self.exhausted and self.ended == self.taken

    def has_nothing_under_way(self) -> bool:
        return self.ended == self.taken

    def cancel(self) -> None:
        """Nobody wants the rest."""
        self.exhausted = True
        self.engine.cancel(self)

    def _ends(self, arguments: Payload) -> None:
        self.changed = True
        self.ended += 1
        self.bytes -= len(arguments) if type(arguments) is bytes else size_of(arguments)


class MapCall(Call):
    """All results, in order; the first failure ends it."""

    def __init__(self, engine: Engine, pickler: Any, items: Iterable[Tuple[Any, Any]]) -> None:
        super().__init__(engine, pickler, items)
        self.results: List[Any] = []
        self.error: Optional[BaseException] = None

    def prepare(self, count: int) -> None:
        self.results.extend([None] * count)

    def held_bytes(self) -> int:
        return self.bytes

    def done(self, index: int, value: Any, arguments: Payload, size: int) -> None:
        self.results[index] = value
        self._ends(arguments)

    def failed(self, index: int, error: BaseException, arguments: Payload) -> None:
        if self.error is None:
            self.error = error
        self._ends(arguments)

    def run(self, bar: Any) -> List[Any]:
        try:
            shown = 0
            self.feed()
            while self.error is None and not self.is_complete():
                self.engine.turn(self)
                bar.advance(self.ended - shown)
                shown = self.ended
                if self.error is None:
                    self.feed()
            if self.error is not None:
                raise self.error
            return self.results
        except BaseException:
            self.cancel()
            raise
        finally:
            bar.close()


class Results(Call, Iterator[Any]):
    """Results as they come. A failed task's exception is raised in its place; the iteration can go on after it."""

    def __init__(self, engine: Engine, pickler: Any, items: Iterable[Tuple[Any, Any]], bar: Any) -> None:
        super().__init__(engine, pickler, items)
        self.bar = bar
        self.read: int = 0
        self.read_since_feed: int = 0
        self.ready: Deque[Tuple[Any, Optional[BaseException], int]] = deque()
        self.is_cut_off: bool = False
        self.begin()

    def begin(self) -> None:
        self.feed()

    def held(self) -> int:
        return self.taken - self.read

    def held_bytes(self) -> int:
        return self.bytes + self.largest_result * (self.taken - self.read)

    def done(self, index: int, value: Any, arguments: Payload, size: int) -> None:
        if size > self.largest_result:
            self.largest_result = size
        self.put(index, (value, None, size))
        self._ends(arguments)

    def failed(self, index: int, error: BaseException, arguments: Payload) -> None:
        self.put(index, (None, error, 0))
        self._ends(arguments)

    def put(self, index: int, outcome: Tuple[Any, Optional[BaseException], int]) -> None:
        self.ready.append(outcome)

    def __iter__(self) -> "Results":
        return self

    def __next__(self) -> Any:
        while not self.ready:
            if self.is_cut_off:
                raise CancelledError()
            if self.exhausted and self.read == self.taken:
                self.bar.close()
                raise StopIteration
            self.engine.turn(self)
            self.feed()
        value, error, _ = self.ready.popleft()
        self.read += 1
        self.bar.advance(1)
        # Not for each: what is fed at once shares a system call.
        self.read_since_feed += 1
        if not self.exhausted and 4 * self.read_since_feed >= self.held():
            self.read_since_feed = 0
            self.feed()
        if isinstance(error, StopIteration):
            # Else it would look like the end of the results.
            raise RuntimeError("a task raised StopIteration") from error
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Cancels what is unfinished."""
        if not (self.exhausted and self.read == self.taken):
            self.read = self.taken
            self.ready.clear()
            self.cancel()
        self.bar.close()

    def cut_off(self) -> None:
        """Cancels what is unfinished; whoever reads on is told."""
        if not self.is_complete():
            self.cancel()
            self.ended: int = self.taken
            self.is_cut_off = True

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class OrderedResults(Results):
    """The same in the order of the items."""

    def __init__(self, engine: Engine, pickler: Any, items: Iterable[Tuple[Any, Any]], bar: Any) -> None:
        self.early: Dict[int, Tuple[Any, Optional[BaseException], int]] = {}
        self.next_index: int = 0
        super().__init__(engine, pickler, items, bar)

    def put(self, index: int, outcome: Tuple[Any, Optional[BaseException], int]) -> None:
        self.early[index] = outcome
        while self.next_index in self.early:
            self.ready.append(self.early.pop(self.next_index))
            self.next_index += 1


class EagerResults(OrderedResults):
    """As `OrderedResults`, but all items are taken and sent at once, whether their results are read or not."""

    def begin(self) -> None:
        self.take_all()


class BufferedResults(OrderedResults):
    """As `OrderedResults`, but no more than `most` items are taken whose results have not been read."""

    def __init__(self, engine: Engine, pickler: Any, items: Iterable[Tuple[Any, Any]], bar: Any, most: int) -> None:
        self.most = most
        super().__init__(engine, pickler, items, bar)


class PoolFuture(Future[Any]):
    """The result of one task. A task is running once a worker has it, and cannot be cancelled then."""

    _call: "Union[FutureCall, MapFuture]"

    def __init__(self) -> None:
        super().__init__()
        # Taken for good by whoever ends it: its result, or its cancellation.
        self._ending = threading.Lock()

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if self._ending.acquire(blocking=False):
            self._call.forget()
            # Tells `wait` and `as_completed`, which know of nothing else that a future is done.
            self.set_running_or_notify_cancel()
        return True

    def begun(self) -> None:
        """A worker has the task."""
        with self._condition:
            if self._state == PENDING:
                self._state = RUNNING

    def settle(self, value: Any, error: Optional[BaseException]) -> None:
        """The task has ended, unless it was cancelled before."""
        if not self._ending.acquire(blocking=False):
            return
        if not self.running() and not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


class FutureCall:
    """A single task with a future."""

    is_future = wants_start = True
    near: Dict[str, int] = {}

    def __init__(self, engine: Engine, pickler: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.engine = engine
        self.changed = False
        self.future = PoolFuture()
        self.future._call = self
        self.id = 0
        engine.check()
        try:
            payload = pickler.call(args, kwargs)
        except Exception as error:
            self.future.settle(None, error)
            return
        self.id = engine.add(self, [(0, payload)])

    def begun(self, node: str) -> None:
        self.future.begun()

    def done(self, index: int, value: Any, arguments: Payload, size: int) -> None:
        self.engine.futures -= 1
        self.engine.finish(self.future, value, None)

    def failed(self, index: int, error: BaseException, arguments: Payload) -> None:
        self.engine.futures -= 1
        self.engine.finish(self.future, None, error)

    def forget(self) -> None:
        self.engine.cancel(self, self.id)


class MapFuture(Call):
    """A series with one future for all results, in order. That ends when all tasks have, with the first failure if there is one."""

    is_future = True

    def __init__(self, engine: Engine, pickler: Any, items: Iterable[Tuple[Any, Any]]) -> None:
        super().__init__(engine, pickler, items)
        self.results: List[Any] = []
        self.error: Optional[BaseException] = None
        self.future = PoolFuture()
        self.future._call = self
        self.is_over = False
        engine.check()
        self.take_all()
        engine.act(self._end_if_complete)

    def prepare(self, count: int) -> None:
        self.results.extend([None] * count)

    def done(self, index: int, value: Any, arguments: Payload, size: int) -> None:
        self.results[index] = value
        self._ends(arguments)

    def failed(self, index: int, error: BaseException, arguments: Payload) -> None:
        self.error = self.error or error
        self._ends(arguments)

    def forget(self) -> None:
        self.cancel()

    def _ends(self, arguments: Payload) -> None:
        super()._ends(arguments)
        self.engine.futures -= 1
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self.is_complete() and not self.is_over:
            self.is_over = True
            results, self.results = self.results, []
            self.engine.finish(self.future, None if self.error else results, self.error)


class Bar:
    """Progress on stderr: tqdm's bar if it is installed, else a line that is written over."""

    def __init__(self, total: Optional[int], wanted: bool) -> None:
        self.total, self.count, self.wanted, self.bar = total, 0, wanted, None
        if wanted:
            try:
                from tqdm.auto import tqdm

                self.bar = tqdm(total=total)
            except ImportError:
                pass

    def advance(self, count: int) -> None:
        if not self.wanted or not count:
            return
        self.count += count
        if self.bar is not None:
            self.bar.update(count)
        else:
            of = "" if self.total is None else " of %d" % self.total
            sys.stderr.write("\r%d%s tasks" % (self.count, of))
            sys.stderr.flush()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.wanted:
            sys.stderr.write("\n")
        self.wanted = False
        self.bar = None
