"""Calls that run on the machines of the lab, and futures of their results, which stay there until they are asked for.

    import nodectl
    from nodectl import futures

    @nodectl.remote(cpus=1)
    def load(path): ...

    @nodectl.remote
    def add(a, b): ...

    parts = [load.remote(path) for path in paths]
    total = add.remote(parts[0], parts[1])
    print(total.result())

A future as an argument of another call, also within lists, tuples and dicts, stands for its result, which travels from node to node and
not through this program, but for short ones. Calls run in workers that stay, one call in each at a time; of free ones, on the node that
has most of what the call is given. A result stays on its node for as long as its future is referred to, or a call is to be given it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import itertools
import os
import pickle
import sys
import threading
from collections import deque
from concurrent.futures import as_completed, wait
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _jobs, _main, _node
from ._errors import NodeError, PoolError, needed
from ._frames import in_band, loads, size_of, with_buffers
from ._sizes import size

try:
    import cloudpickle
except ImportError as _error:
    raise needed("nodectl.remote", "cloudpickle", _error) from None

from . import _places
from ._lineage import Lineage, Pickled
from ._places import Place
from ._remote import RemoteCaller
from .pool import Pool

__all__ = ["Future", "as_completed", "gather", "remote", "scatter", "submit", "wait"]

# How often a result is computed again that was lost.
_RECOVERIES = 3
# So many functions a pool's workers keep at the most; others come with each call.
_FUNCTIONS = 256
_ENDED = (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED)


class _Options(NamedTuple):
    """What a call needs of its node. Calls that have all but the last in common share workers."""

    where: str
    python: Optional[str]
    sources: Tuple[str, ...]
    priority: int
    cpus: float
    memory: int
    gpus: float
    timeout: Optional[float]
    retries: int


class Future(concurrent.futures.Future[Any]):
    """The result of a call, or a value that was scattered. Done when the result is on the nodes; `result` brings it here.

    All that the standard library does with futures can be done with these: `wait`, `as_completed`, `add_done_callback`."""

    def __init__(self, session: "_Session", name: str, made_by: Optional[Lineage]) -> None:
        super().__init__()
        self._session = session
        #: What the call is named after.
        self.name = name
        # What makes it, to make it again. None of what the program has itself: short results, and values that were scattered.
        self._made_by = made_by
        # Of its needs, those that are not done, and itself until all were looked at.
        self._left = 0
        self._attempt: Optional[_Attempt] = None
        self._tries = 0
        self._recoveries = 0

    def result(self, timeout: Optional[float] = None) -> Any:
        """What the call returned. What it raised is raised here, with the traceback there as its cause.

        :param timeout: Seconds to wait for the call to end.
        :raises WorkerLost: The worker's process ended in the call, or the call took longer than its `timeout`.
        :raises concurrent.futures.TimeoutError: The call has not ended.
        :raises concurrent.futures.CancelledError: The call, or one whose result it was to be given, was cancelled.
        :raises NodeError: The result is lost, and cannot be computed again; or the node is gone."""
        while True:
            place = super().result(timeout)
            try:
                return loads(self._session.content(place))
            except NodeError as error:
                self._session.recover(self, place, error)

    def cancel(self) -> bool:
        """Has the call not run, or end: its worker's process ends if it is at the call, and another takes its place. False if the call has
        ended."""
        with self._condition:
            if self._state in _ENDED:
                return self._state != FINISHED
            self._state = CANCELLED_AND_NOTIFIED
            for waiter in self._waiters:
                waiter.add_cancelled(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]
        attempt = self._attempt
        if attempt is not None:
            attempt.stop()
        return True

    def _begun(self) -> None:
        """A worker has the call."""
        with self._condition:
            if self._state == PENDING:
                self._state = RUNNING

    def _end(self, place: Optional[Place], error: Optional[BaseException]) -> None:
        self._attempt = None
        if self._made_by is not None and place is not None and place.content is None:
            self._made_by.forget_futures()
        else:
            self._made_by = None
        try:
            if error is None:
                self.set_result(place)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass  # It was cancelled.

    def __reduce__(self) -> Any:
        raise TypeError("a future goes to other processes as an argument of a remote call only")


class RemoteFunction:
    """A function whose calls run on the nodes: `f.remote(...)`. `f(...)` calls it here."""

    def __init__(self, function: Callable[..., Any], options: _Options) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> Future:
        """A future of the call's result. Arguments may be futures, or have some in them."""
        return _session().submit(self._function, args, kwargs, self._options)

    def __reduce__(self) -> Any:
        # A function that another one calls is called there.
        return RemoteFunction, (self._function, self._options)


def remote(
    function: Optional[Callable[..., Any]] = None,
    *,
    cpus: float = 1.0,
    memory: Union[int, str] = 0,
    gpus: float = 0.0,
    retries: int = 0,
    timeout: Optional[float] = None,
    where: str = "",
    priority: int = 0,
    python: Optional[str] = None,
    sources: Sequence[str] = (),
) -> Any:
    """Makes a function one that can be called on the nodes; as a decorator, with options or without. Calls end with the program.

    Calls that need the same of their node, but for `retries`, share workers: processes that stay, of which each has what these options say,
    and which import a module once. Of such workers there are as many as fit; idle ones make room where others wait. Modules of your own
    that are imported when the first of them is made travel along.

    :param cpus, memory, gpus: What each call's worker holds: cores, bytes or a text such as `"2 GiB"`, GPUs.
    :param retries: How often a call is tried again that raises an exception or whose process ends. What a lost node costs does not count.
    :param timeout: Seconds that a call may take.
    :param where: Which nodes may run calls, as in a job file.
    :param priority: Higher ones start first.
    :param python: The interpreter on the nodes; by default one of this program's version.
    :param sources: Files and directories that calls import or read, found in their working directory by their own names."""
    paths = tuple(os.path.abspath(path) for path in sources)
    options = _Options(where, python, paths, priority, float(cpus), size(memory), float(gpus), timeout, retries)
    if function is None:
        return lambda function: RemoteFunction(function, options)
    return RemoteFunction(function._function if isinstance(function, RemoteFunction) else function, options)


def submit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
    """A future of the call's result on a node, with one core."""
    made: RemoteFunction = function if isinstance(function, RemoteFunction) else remote(function)
    return made.remote(*args, **kwargs)


def scatter(value: Any) -> Future:
    """A future of a value as it is now, for calls to be given it: each node has it once, however many of them run there, and lets it go
    with the future. A large one is also in a file without a name in the program's directory for temporary files: calls have it again
    from there if nodes are lost.

    :raises NodeError: There is no room for it."""
    return _session().scatter(value)


def gather(futures: Any) -> Any:
    """The results of futures: in lists, tuples, sets and dicts, in their places."""
    if isinstance(futures, concurrent.futures.Future):
        return futures.result()
    if isinstance(futures, dict):
        return {key: gather(value) for key, value in futures.items()}
    if isinstance(futures, (list, tuple, set)):
        return type(futures)(gather(value) for value in futures)
    return futures


class _Workers:
    """An open pool, for calls that need the same of their node."""

    def __init__(self, options: _Options) -> None:
        wanted = options._asdict()
        del wanted["retries"]
        self.pool: _CallPool = _CallPool(RemoteCaller, **wanted, retries=0, name="futures")
        self.engine: Any = self.pool._engine
        self._lock = threading.Lock()
        # Digests of functions that went with a call, and of those that workers keep.
        self._seen: Set[bytes] = set()
        self._kept: Set[bytes] = set()

    def is_open(self) -> bool:
        return not self.engine.closed and self.engine.failure is None

    def pickled(self, function: Any, args: Any, kwargs: Any, reducers: Dict[type, Any]) -> Pickled:
        pickler = self.pool._pickler
        pickled = pickler.dumps(function, {RemoteFunction: _plain})
        arguments = pickler.dumps((args, kwargs), {RemoteFunction: _plain, **reducers})
        return Pickled(hashlib.blake2b(pickled, digest_size=16).digest(), pickled, arguments)

    def to_send(self, call: Pickled) -> Optional[bytes]:
        """A call's function; None if workers keep it, which they do from the second call on."""
        with self._lock:
            if call.digest in self._kept:
                return None
            if call.digest not in self._seen or len(self._kept) >= _FUNCTIONS:
                if len(self._seen) >= 16 * _FUNCTIONS:
                    self._seen.clear()
                self._seen.add(call.digest)
                return call.function
            self.pool.update_workers({"args": [call.digest, call.function]})
            self._kept.add(call.digest)
            return None


class _CallPool(Pool[RemoteCaller]):
    # Of calls some are long, and one that ends its worker must be no other's misfortune.
    _more = {"one_at_a_time": True}


class _Attempt:
    """A call on its way to a worker and back, as a pool's engine knows it."""

    is_future: bool = True
    wants_start: bool = True
    changed: bool = False

    def __init__(self, session: "_Session", future: Future, given: Dict[str, Place], workers: _Workers) -> None:
        self.session: _Session = session
        self.future: Future = future
        self.given: Dict[str, Place] = given
        self.engine: Any = workers.engine
        made_by = future._made_by
        assert made_by is not None, "what is scattered is done"
        self.made_by: Lineage = made_by
        #: The node of its worker, once it has one.
        self.node: str = ""
        self.near: Dict[str, int] = _places.near(given.values())
        call = made_by.call
        places = [(name, place.content, place.hash, place.nodes()) for name, place in given.items()]
        whole = call.digest, workers.to_send(call), pickle.PickleBuffer(call.arguments), places
        buffers: List[Any] = []
        data = pickle.dumps((whole, {}), 5, buffer_callback=in_band(buffers))
        self.id: int = 0
        future._attempt = self
        self.id = self.engine.add(self, [(0, with_buffers(data, buffers))])
        if future.cancelled():
            self.stop()

    def stop(self) -> None:
        self.engine.cancel(self, self.id, stop=True)

    # With the engine's lock held

    def begun(self, node: str) -> None:
        self.node = node or self.node
        self.future._begun()

    def done(self, index: int, value: Any, arguments: Any, size: int) -> None:
        self.engine.futures -= 1
        self.engine.finish(self, value, None)

    def failed(self, index: int, error: BaseException, arguments: Any) -> None:
        self.engine.futures -= 1
        self.engine.finish(self, None, error)

    # Without

    def settle(self, value: Any, error: Optional[BaseException]) -> None:
        for place in self.given.values() if self.node else ():
            place.brought_to(self.node, self.engine)
        self.session.ended(self, value, error)


class _Session:
    """The calls of this program."""

    def __init__(self) -> None:
        self._local = _node.LocalNode(None, None, None)
        self._local.make_run()
        self.node: str = self._local.path
        self._id: str = _jobs.again(lambda: _node.request(self.node, "GET", "/v1/node"))["id"]
        self._released = _places.Released(self.node)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._workers: Dict[_Options, _Workers] = {}
        self._due = _Due()

    def submit(self, function: Any, args: Any, kwargs: Any, options: _Options) -> Future:
        needs: Dict[str, Future] = {}

        def stand_in(future: Future) -> Any:
            needs[future.name] = future
            return _main.given, (future.name,)

        workers = self._workers_of(options)
        call = workers.pickled(function, args, kwargs, {Future: stand_in})
        for need in needs.values():
            if isinstance(need._result, _places.Scattered):
                need._result.put(self._local, workers.engine)
        name = "%s-%d" % (getattr(function, "__name__", "call"), next(self._numbers))
        future = Future(self, name, Lineage(name, call, needs, options))
        self._start(future)
        return future

    def scatter(self, value: Any) -> Future:
        buffers: List[Any] = []
        data = cloudpickle.dumps(value, 5, buffer_callback=in_band(buffers))
        payload = with_buffers(data, buffers)
        parts = [payload] if isinstance(payload, bytes) else list(payload)
        future = Future(self, "value-%d" % next(self._numbers), None)
        future.set_result(_places.scattered(parts, size_of(payload), self._id, self._released))
        return future

    def content(self, place: Place) -> Any:
        if place.content is not None:
            return place.content
        if isinstance(place, _places.Scattered):
            return bytearray(place.read())
        return bytearray(_jobs.blob(self.node, place.hash, next(iter(place.nodes()), None), kept=True))

    def recover(self, future: Future, place: Place, error: NodeError) -> None:
        """Has a result computed again that no node has any more, and what it needs that is lost, too; or a value put there again. Raises the
        error if that cannot be."""
        with future._condition:
            if future._state != FINISHED or future._result is not place:
                return  # Somebody else was first.
            if future._recoveries >= _RECOVERIES:
                raise error
            future._recoveries += 1
            if isinstance(place, _places.Scattered):
                future._result = place.once_more()
                return
            if future._made_by is None:
                raise error
            # Who was told that it is done is not told again.
            future._state, future._result, future._done_callbacks = PENDING, None, []  # type: ignore[attr-defined]
        self._due.do(functools.partial(self._start, future))

    def ended(self, attempt: _Attempt, value: Any, error: Optional[BaseException]) -> None:
        """What became of a call that was given to a worker."""
        future = attempt.future
        # What a node has for it is kept until nobody knows of this any more.
        place = None if error is not None else _places.of_answer(value, attempt.engine, self._released)
        if future.done():
            return  # It was cancelled.
        if error is not None:
            from ._broken import WorkerLost

            # A pool that has ended is nothing that the call did.
            is_its_own = isinstance(error, WorkerLost) or not isinstance(error, PoolError)
            if is_its_own and future._tries < attempt.made_by.options.retries:
                future._tries += 1
                self._start_again(future)
            else:
                future._end(None, error)
        elif place is None:
            self._is_lost(attempt, *value[1:])
        else:
            future._end(place, None)

    def _is_lost(self, attempt: _Attempt, names: List[str], why: str) -> None:
        """Results are lost that a call was given: these are computed again, and then the call."""
        future = attempt.future
        needs = self._needs_of(attempt.made_by)
        for name in names:
            try:
                self.recover(needs[name], attempt.given[name], NodeError("the result %s is lost: %s" % (name, why)))
            except NodeError as error:
                future._end(None, error)
                return
        self._start_again(future)

    def _start_again(self, future: Future) -> None:
        with future._condition:
            if future._state == RUNNING:
                future._state = PENDING
        self._start(future)

    def _start(self, future: Future) -> None:
        """Gives a call to the workers when all that it needs is done."""
        made_by = future._made_by
        if made_by is None:
            return  # It was cancelled.
        waits_for = [need for need in self._needs_of(made_by).values() if not need.done()]
        with self._lock:
            future._left = len(waits_for) + 1
        for need in waits_for:
            need.add_done_callback(functools.partial(self._need_done, future))
        self._need_done(future)

    def _need_done(self, future: Future, _: Any = None) -> None:
        with self._lock:
            future._left -= 1
            if future._left:
                return
        self._due.do(functools.partial(self._give, future))

    def _needs_of(self, made_by: Lineage) -> Dict[str, Future]:
        """Futures of what a call is given. Those that nobody refers to any more begin anew: what they stood for is gone."""
        with self._lock:
            begun: List[Future] = []

            def make(needed: Lineage) -> Future:
                begun.append(Future(self, needed.name, needed))
                return begun[-1]

            needs: Dict[str, Future] = made_by.futures(make)
        for future in begun:
            # Not from here: of a long chain each would begin within the next.
            self._due.do(functools.partial(self._start, future))
        return needs

    def _give(self, future: Future) -> None:
        made_by = future._made_by
        if future.done() or made_by is None:
            return  # It was cancelled.
        given: Dict[str, Place] = {}
        for name, need in self._needs_of(made_by).items():
            with need._condition:
                state, place, why = need._state, need._result, need._exception
            if state not in _ENDED:
                # Somebody has found it lost meanwhile.
                self._start(future)
                return
            if place is None:
                future._end(None, why or concurrent.futures.CancelledError())
                return
            given[name] = place
        try:
            workers = self._workers_of(made_by.options)
            scattered = [place for place in given.values() if isinstance(place, _places.Scattered)]
            if all(place.is_put(workers.engine) for place in scattered):
                _Attempt(self, future, given, workers)
            else:
                # Some were lost. This thread may be the one that pools are driven by.
                put = functools.partial(self._put, future, given, workers, scattered)
                threading.Thread(target=put, name="nodectl-scatter", daemon=True).start()
        except Exception as error:
            future._end(None, error)

    def _put(self, future: Future, given: Dict[str, Place], workers: _Workers, scattered: List[_places.Scattered]) -> None:
        """Gives a call to the workers when they find there what was scattered."""
        try:
            for place in scattered:
                place.put(self._local, workers.engine)
            if not future.done():
                _Attempt(self, future, given, workers)
        except Exception as error:
            future._end(None, error)

    def _workers_of(self, options: _Options) -> _Workers:
        key = options._replace(retries=0)
        with self._opening:
            workers = self._workers.get(key)
            if workers is None or not workers.is_open():
                workers = self._workers[key] = _Workers(key)
            return workers

    def close(self) -> None:
        """Ends what is under way: nobody will ask for it."""
        with self._opening:
            for workers in self._workers.values():
                workers.pool.close()


class _Due:
    """What is to be done in a thread, one after the other: of a long chain of calls the failure of one is that of the next, and each of
    these in the one before would be too deep."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def do(self, what: Callable[[], None]) -> None:
        mine = self._of_thread.__dict__
        due = mine.setdefault("due", deque())
        due.append(what)
        if mine.get("is_at_it"):
            return
        mine["is_at_it"] = True
        try:
            while due:
                due.popleft()()
        finally:
            mine["is_at_it"] = False


def _plain(function: RemoteFunction) -> Any:
    """On a worker the function is there to be called."""
    return _main.local, (function._function,)


_lock = threading.Lock()
_of_process: Optional[_Session] = None


def _session() -> _Session:
    global _of_process
    with _lock:
        if _of_process is None:
            _of_process = _Session()
        return _of_process


def _finish() -> None:
    if _of_process is not None:
        _of_process.close()


def _after_fork() -> None:
    # A child has none of its parent's threads.
    global _lock, _of_process
    _lock, _of_process = threading.Lock(), None


# Before the node ends that this process started.
getattr(threading, "_register_atexit", __import__("atexit").register)(_finish)
os.register_at_fork(after_in_child=_after_fork)
