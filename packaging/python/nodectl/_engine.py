"""The client's end of a pool: unfinished tasks, the stream to the node, and who drives it.

Whoever waits for something drives the stream from its own thread; other threads that wait meanwhile are told of progress. When
nobody does, a background thread takes over: at once for futures, after 10 ms for a series whose reader is busy elsewhere.

This side is the source of truth: it keeps the arguments of every unfinished task, and all updates since the start or the last
snapshot. When the stream breaks, it opens a new pool, at a new node if need be, and sends what is unfinished again.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import _frames as frames
from ._errors import NodeError, PoolError, RemoteError, UpdateFailed, from_payload, summary
from ._frames import HEADER, MAX_CHUNK_BYTES, Payload, Stream, loads, loads_json, size_of

# How long a node may take to answer, and to come back after it was lost.
OPEN_SECONDS = 60.0
# The background thread looks this often whether somebody drives.
_LOOK_SECONDS = 0.01
# Messages that are handled before the driver looks after its own affairs.
_TURN_MESSAGES = 512
_NOBODY, _CALLER, _BACKGROUND = 0, 1, 2
# What a node says that opens nothing any more (`QueryError::Leaving`).
_LEAVING = "this node is leaving"


class Engine:
    """One open pool. `open_request` makes the JSON of OPEN, given whether the node works alone."""

    def __init__(
        self, node: Any, open_request: Callable[[bool], Dict[str, Any]], init: bytes, unpickle: bool = True
    ) -> None:
        self.node = node
        #: Whether what workers send is unpickled, and so may run code here.
        self.unpickle = unpickle
        self.open_request = open_request
        self.init = init
        self.job: str = ""
        self.host: str = ""
        self.workers: int = 0
        self.nodes: int = 0
        self.starting: int = 0
        self.closed: bool = False
        #: Why the pool is of no use any more.
        self.failure: Optional[BaseException] = None
        #: Futures that wait: the background thread drives for them.
        self.futures: int = 0
        self._make_locks()
        self._unfinished: Dict[int, Tuple[Any, int, Payload]] = {}
        self._next_id = 1
        # What a new worker gets: the updates since the start, or the last snapshot and those after it.
        self._updates: List[Payload] = []
        self._last_update = 0
        self._finished: List[Tuple[Any, Any, Optional[BaseException]]] = []
        self._warnings: List[str] = []
        self._warned: Set[str] = set()
        self._poller: Any = None
        self._stream: Any = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._open()
        _engines.add(self)
        threading.Thread(target=self._background, name="nodectl-pool", daemon=True).start()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        # Somebody else drove; there is work for the background thread.
        self._progress = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._driver = _NOBODY
        self._waiting = 0
        self._turns = 0
        self._dozing = False
        self._woken = False

    # What calls ask for

    def add(self, call: Any, tasks: List[Tuple[int, Payload]]) -> int:
        """Sends tasks, given as (index in the call, arguments). The id of the first; the others' follow."""
        with self._lock:
            self.check()
            first = self._next_id
            flags = frames.TELL if call.wants_start else 0
            if call.is_future:
                self.futures += len(tasks)
            small: List[bytes] = []
            for index, payload in tasks:
                id = self._next_id
                self._next_id += 1
                self._unfinished[id] = (call, index, payload)
                if call.near:
                    small.append(frames.near(id, call.near))
                if type(payload) is bytes and len(payload) <= MAX_CHUNK_BYTES:
                    small.append(HEADER.pack(frames.RUN, flags, len(payload), id) + payload)
                else:
                    # In this order: a NEAR before its RUN.
                    self._stream.out.extend(small)
                    small = []
                    self._announce(id, payload, flags)
            if small:
                self._stream.out.append(b"".join(small))
            self._posted()
            return first

    def fail(self, call: Any, failed: List[Tuple[int, BaseException]]) -> None:
        """Items of a call, given as (index in the call, error), of which no task can be made."""
        with self._lock:
            if call.is_future:
                self.futures += len(failed)
            for index, error in failed:
                call.failed(index, error, b"")

    def act(self, act: Callable[[], None]) -> None:
        """Calls a function with the lock held, then tells futures what it ended."""
        with self._lock:
            act()
        self._settle()

    def turn(self, call: Any) -> None:
        """Returns when something has happened to the call. Fails if the pool has ended."""
        with self._lock:
            while not call.changed:
                self.check()
                self._take_turn(None)
            call.changed = False
        self._settle()

    def counts(self) -> Tuple[int, int]:
        """How many tasks there have been, and how many of them are unfinished."""
        with self._lock:
            return self._next_id - 1, len(self._unfinished)

    def wait(self, ready: Callable[[], bool], timeout: Optional[float]) -> bool:
        """Waits until `ready()`, asked with the lock held. False if the time (s) has passed before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not ready():
                self.check()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._take_turn(left)
        self._settle()
        return True

    def refresh(self) -> None:
        """Reads what is here, without waiting."""
        with self._lock:
            self.check()
            if self._driver == _NOBODY:
                self._exchange()
        self._settle()

    def cancel(self, call: Any, id: Optional[int] = None, stop: bool = False) -> None:
        """Forgets what is unfinished of a call, or one task of it. `stop`: a worker that is at it ends."""
        flags = frames.STOP if stop else 0
        with self._lock:
            ids = [id for id, entry in self._unfinished.items() if entry[0] is call] if id is None else [id]
            ids = [id for id in ids if self._unfinished.pop(id, None) is not None]
            if call.is_future:
                self.futures -= len(ids)
            if ids and not self.closed and self.failure is None:
                self._stream.out.append(b"".join(HEADER.pack(frames.CANCEL, flags, 0, id) for id in ids))
                self._posted()

    def update(self, payload: Payload, snapshot: bool) -> None:
        """Sends an update; one that is a snapshot stands for all before it too."""
        with self._lock:
            self.check()
            if snapshot:
                if self._last_update == 0:
                    raise ValueError("there was no update yet that a snapshot could stand for")
                self._updates = [payload]
                self._stream.put(frames.SNAPSHOT, self._last_update, payload)
            else:
                self._last_update += 1
                self._updates.append(payload)
                self._stream.put(frames.UPDATE, self._last_update, payload)
            self._posted()

    def release(self, node: str, what: bytes) -> None:
        """Has a worker of a node let go of what it has kept, as soon as there is one. `what` is for the worker."""
        with self._lock:
            if not self.closed and self.failure is None:
                self._stream.put(frames.RELEASE, 0, bytes.fromhex(node) + what)
                self._posted()

    def check(self) -> None:
        """Fails if the pool is of no use any more."""
        if self.closed:
            raise PoolError("the pool is closed")
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Ends the workers; what is unfinished fails."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._wake()
            while self._driver != _NOBODY:
                self._waiting += 1
                self._progress.wait(1.0)
                self._waiting -= 1
            self._fail_futures(PoolError("the pool was closed before the task had ended"))
            self._work.notify_all()
            self._progress.notify_all()
            try:
                self._stream.flush()
                if not self._stream.out:
                    self._stream.put(frames.CLOSE, 0, b"")
                    self._stream.flush()
            except OSError:
                pass
            self._stream.socket.close()
            self._unfinished.clear()
            os.close(self._wake_read)
            os.close(self._wake_write)
        self._settle()
        _engines.discard(self)

    # Driving. The lock is held, and released only while the driver sleeps.

    def _posted(self) -> None:
        """Something waits to be sent, or for an answer."""
        if self._driver != _NOBODY:
            self._wake()
            # Whoever drives may have what it waits for before this is answered.
            if self._dozing:
                self._work.notify()
            return
        try:
            self._stream.flush()
        except OSError:
            pass  # Whoever drives next finds that out too.
        if self._dozing or self.futures:
            self._work.notify()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            os.write(self._wake_write, b"x")

    def _take_turn(self, timeout: Optional[float]) -> None:
        if self._driver == _NOBODY:
            self._driver = _CALLER
            try:
                self._step(timeout)
            finally:
                self._driver = _NOBODY
                if self._waiting:
                    self._progress.notify_all()
            self._settle_unlocked()
            return
        self._waiting += 1
        if self._driver == _BACKGROUND:
            self._wake()
        try:
            self._progress.wait(timeout)
        finally:
            self._waiting -= 1

    def _step(self, timeout: Optional[float]) -> None:
        """Sends and reads; sleeps if there was nothing to read."""
        self._turns += 1
        if self._exchange():
            return
        events = select.POLLIN | (select.POLLOUT if self._stream.out else 0)
        poller, fd = self._poller, self._stream.socket.fileno()
        poller.modify(fd, events)
        self._lock.release()
        try:
            poller.poll(None if timeout is None else timeout * 1e3)
        finally:
            self._lock.acquire()
        if self._woken:
            self._woken = False
            try:
                os.read(self._wake_read, 64)
            except BlockingIOError:
                pass

    def _exchange(self) -> bool:
        """Sends and reads without waiting; whether something was read."""
        try:
            if self._stream.out:
                self._stream.flush()
        except OSError:
            pass  # What the node said before it closed the stream can still be read; then reading fails, too.
        try:
            return self._receive()
        except (OSError, EOFError):
            if not self.closed and self.failure is None:
                self._open()
            return True

    def _receive(self) -> bool:
        unfinished, count = self._unfinished, 0
        load = loads if self.unpickle else loads_json
        for kind, id, payload in self._stream.receive():
            count += 1
            if kind == frames.DONE:
                entry = unfinished.pop(id, None)
                if entry is not None:
                    call, index, arguments = entry
                    try:
                        value = load(payload)
                    except Exception as unloadable:
                        call.failed(index, unloadable, arguments)
                    except (SystemExit, GeneratorExit) as end:
                        # Nobody here asked for an end.
                        what = "%s: %s" % (type(end).__name__, end)
                        call.failed(index, RemoteError("the result cannot be unpickled: " + what), arguments)
                    else:
                        call.done(index, value, arguments, len(payload))
                    value = None
            elif kind in (frames.FAILED, frames.LOST):
                entry = unfinished.pop(id, None)
                if entry is not None:
                    lost = kind == frames.LOST
                    if lost:
                        from ._broken import WorkerLost

                        error: BaseException = WorkerLost(bytes(payload).decode(errors="replace"))
                    else:
                        error = from_payload(payload, self.unpickle)
                    entry[0].failed(entry[1], error, entry[2])
            elif kind in (frames.STARTED, frames.SEND):
                entry = unfinished.get(id)
                if entry is not None:
                    if entry[0].wants_start:
                        entry[0].begun(bytes(payload).decode() if kind == frames.STARTED else "")
                    if kind == frames.SEND:
                        self._stream.put_first(frames.RUN, id, entry[2])
            elif kind == frames.STATUS:
                status = json.loads(bytes(payload))
                self.workers, self.nodes = status["workers"], status["nodes"]
                self.starting = status.get("starting", 0)
            elif kind == frames.UPDATE_FAILED:
                self._warnings.append(summary(payload))
            elif kind == frames.ERROR:
                from ._broken import PoolBroken

                self._fail(PoolBroken(bytes(payload).decode(errors="replace")))
            payload = entry = None
            if count >= _TURN_MESSAGES:
                break
        return count > 0

    def _settle(self) -> None:
        """Tells futures and the user, without the lock: their callbacks may use the pool."""
        while self._finished:
            future, value, error = self._finished.pop(0)
            future.settle(value, error)
            # Not kept until the next one ends.
            del future, value, error
        while self._warnings:
            text = self._warnings.pop(0)
            if text not in self._warned:
                self._warned.add(text)
                warnings.warn("handle_update failed on a worker:\n" + text, UpdateFailed, stacklevel=4)

    def _settle_unlocked(self) -> None:
        """The same where the lock is held, which is given away meanwhile."""
        if self._finished or self._warnings:
            self._lock.release()
            try:
                self._settle()
            finally:
                self._lock.acquire()

    def finish(self, future: Any, value: Any, error: Optional[BaseException]) -> None:
        """What a future stands for has ended. With the lock held."""
        self._finished.append((future, value, error))

    def _fail(self, failure: BaseException) -> None:
        self.failure = failure
        for call in {id(entry[0]): entry[0] for entry in self._unfinished.values()}.values():
            call.changed = True
        self._fail_futures(failure)

    def _fail_futures(self, failure: BaseException) -> None:
        for call, index, arguments in self._unfinished.values():
            if call.is_future:
                call.failed(index, failure, arguments)
        self._unfinished = {id: entry for id, entry in self._unfinished.items() if not entry[0].is_future}

    def _background(self) -> None:
        seen = -1
        self._lock.acquire()
        try:
            while not self.closed and self.failure is None:
                if not self._unfinished and not self._stream.out:
                    self._dozing = True
                    self._work.wait()
                    self._dozing = False
                    seen = self._turns
                elif self._driver != _NOBODY or self._waiting or (self._turns != seen and not self.futures):
                    seen = self._turns
                    self._work.wait(_LOOK_SECONDS)
                else:
                    self._drive_in_background()
                    seen = self._turns
        finally:
            self._lock.release()

    def _drive_in_background(self) -> None:
        while not self.closed and self.failure is None and not self._waiting:
            if not self._unfinished and not self._stream.out:
                return
            self._driver = _BACKGROUND
            try:
                self._step(None)
            except NodeError as error:
                self._fail(error)
            finally:
                self._driver = _NOBODY
                if self._waiting:
                    self._progress.notify_all()
            self._settle_unlocked()

    # Opening, and opening again

    def _open(self) -> None:
        """Opens the pool at a node; sends again what is unfinished. Fails with NodeError or PoolError."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                self._open_once(deadline)
                return
            except (OSError, EOFError, NodeError) as error:
                first = not self.job
                if time.monotonic() > deadline or (first and isinstance(error, NodeError)):
                    failure = error if isinstance(error, NodeError) else NodeError("the node cannot be reached: %s" % error)
                    self._fail(failure)
                    raise failure from None
                time.sleep(0.05)
            except PoolError as error:
                self._fail(error)
                raise

    def _open_once(self, deadline: float) -> None:
        connection, early, works_alone = self.node.open(again=bool(self.job))
        stream = Stream(connection, early)
        request = self.open_request(works_alone)
        if self.job:
            request["replaces"] = self.job
        stream.put(frames.OPEN, 0, json.dumps(request).encode())
        stream.put(frames.INIT, 0, self.init)
        opened = _answer(stream, deadline)
        self.job, self.host = opened["job"], opened["node"]
        self.workers = self.nodes = self.starting = 0
        if self._stream is not None:
            self._stream.socket.close()
        self._stream = stream
        # All workers of this pool are new, so that a snapshot is their first update.
        self._last_update = len(self._updates)
        for number, payload in enumerate(self._updates, 1):
            stream.put(frames.UPDATE, number, payload)
        for id, (call, _, payload) in self._unfinished.items():
            if call.near:
                stream.out.append(frames.near(id, call.near))
            self._announce(id, payload, frames.TELL if call.wants_start else 0)
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        self._poller.register(self._wake_read, select.POLLIN)

    def _announce(self, id: int, payload: Payload, flags: int) -> None:
        """Sends a task, or only word of it if it is large: the node asks for it when there is a worker."""
        size = size_of(payload)
        if size <= MAX_CHUNK_BYTES:
            self._stream.put(frames.RUN, id, payload, flags)
        else:
            self._stream.out.append(
                HEADER.pack(frames.RUN, frames.PULL, frames.LENGTH.size, id) + frames.LENGTH.pack(size)
            )


def _answer(stream: Stream, deadline: float) -> Any:
    """The answer to OPEN."""
    poller = select.poll()
    poller.register(stream.socket, select.POLLIN)
    while time.monotonic() < deadline:
        try:
            stream.flush()
        except OSError:
            pass  # See `_exchange`.
        for kind, _, payload in stream.receive():
            if kind == frames.OPENED:
                return json.loads(bytes(payload))
            if kind == frames.ERROR:
                why = bytes(payload).decode(errors="replace")
                if why.startswith(_LEAVING):
                    # As if it had gone already: another one may serve the pool.
                    raise ConnectionAbortedError(why)
                raise PoolError(why)
        poller.modify(stream.socket, select.POLLIN | (select.POLLOUT if stream.out else 0))
        poller.poll(1000)
    raise PoolError("the node did not open the pool within %d s\nhint: `nodectl doctor`" % OPEN_SECONDS)


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def close_all() -> None:
    """Closes every pool of this process."""
    for engine in list(_engines):
        engine.close()


atexit.register(close_all)


def _after_fork() -> None:
    for engine in list(_engines):
        engine._make_locks()
        engine.closed = True
        engine._stream.socket.close()
    _engines.clear()


os.register_at_fork(after_in_child=_after_fork)
