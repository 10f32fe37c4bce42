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
not through this program. Each call is a process of its own: for many short ones there are pools.
"""

from __future__ import annotations

import concurrent.futures
import functools
import io
import itertools
import os
import pickle
import threading
from concurrent.futures import as_completed, wait
from typing import Any, Callable, Dict, Hashable, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _jobs, _node
from ._errors import NodeError, RemoteError, needed
from ._sizes import size
from ._upload import Stored, upload
from .graph import CALL, CALLS, SCRIPT, Pickler, word

try:
    import cloudpickle
except ImportError as error:
    raise needed("nodectl.remote", "cloudpickle", error) from None

__all__ = ["Future", "as_completed", "gather", "remote", "scatter", "submit", "wait"]

# So many jobs are under way at the most: meanwhile further calls gather, and go together.
_JOBS = 16
# So many calls are one job at the most.
_TOGETHER = 10_000
# Calls share a job, whose nodes get all files of all of them, if results that they are given are no larger.
_SMALL_BYTES = 1 << 20
# How often a result is computed again that was lost.
_RECOVERIES = 3
_WAIT_MS = 8000


class _Options(NamedTuple):
    """What a call needs of its node. Calls of one job have the first four in common."""

    where: str
    python: Optional[str]
    sources: Tuple[str, ...]
    priority: int
    cpus: float
    memory: int
    gpus: float
    retries: int
    timeout: Optional[float]


class Future(concurrent.futures.Future):  # type: ignore[type-arg]
    """The result of a call, or a value that was scattered. Done when the result is on the nodes; `result` brings it here.

    All that the standard library does with futures can be done with these: `wait`, `as_completed`, `add_done_callback`. One that no node
    has been given yet can be cancelled."""

    def __init__(self, session: "_Session", name: str, call: Optional[bytes], needs: "Dict[str, Future]", options: Optional[_Options]) -> None:
        super().__init__()
        self._session = session
        #: What its task is called.
        self.name = name
        # What makes it, to make it again. None of a value that was scattered.
        self._call = call
        self._needs = needs
        self._options = options
        self._recoveries = 0
        # Where the results are that its job is given; others are made in the same job.
        self._given: Dict[str, _Place] = {}

    def result(self, timeout: Optional[float] = None) -> Any:
        """What the call returned.

        :param timeout: Seconds to wait for the call to end.
        :raises RemoteError: The call, or one whose result it was given, failed.
        :raises concurrent.futures.TimeoutError: It has not ended.
        :raises NodeError: The result is lost, and cannot be computed again; or the node is gone."""
        while True:
            place = super().result(timeout)
            try:
                return pickle.loads(_jobs.blob(self._session.node, place.hash, place.holder))
            except NodeError as error:
                self._session.recover(self, place, error)

    def cancel(self) -> bool:
        """Whether the call will not run: no node has been given it yet."""
        cancelled = super().cancel()
        self._session.wake()
        return cancelled

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

    :param cpus, memory, gpus: What each call holds: cores, bytes or a text such as `"2 GiB"`, GPUs.
    :param retries: How often a call is tried again that raises an exception or whose process ends. What a lost node costs does not count.
    :param timeout: Seconds that a call may take.
    :param where: Which nodes may run calls, as in a job file.
    :param priority: Higher ones start first.
    :param python: The interpreter on the nodes; by default one of this program's version.
    :param sources: Files and directories that calls import or read, found beside them by their own names."""
    options = _Options(where, python, tuple(os.path.abspath(path) for path in sources), priority, cpus, size(memory), gpus, retries, timeout)
    if function is None:
        return lambda function: RemoteFunction(function, options)
    return RemoteFunction(function._function if isinstance(function, RemoteFunction) else function, options)


def submit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
    """A future of the call's result on a node, with one core."""
    made: RemoteFunction = function if isinstance(function, RemoteFunction) else remote(function)
    return made.remote(*args, **kwargs)


def scatter(value: Any) -> Future:
    """A future of a value, put into this machine's node once: calls that are given it share it, however many they are."""
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


class _Place(NamedTuple):
    """Where a result is."""

    hash: str
    bytes: int
    #: A node that has it.
    holder: Optional[str]


class _Session:
    """The calls of this program."""

    def __init__(self) -> None:
        self.node, self.alone = _jobs.open_node()
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        # Not given to a node yet, in the order in which they were made.
        self._new: List[Future] = []
        self._jobs: Set[str] = set()
        threading.Thread(target=self._give, name="nodectl-futures", daemon=True).start()

    def submit(self, function: Any, args: Any, kwargs: Any, options: _Options) -> Future:
        needs: Dict[str, Future] = {}
        file = io.BytesIO()

        def name_of(value: Any) -> Optional[str]:
            if not isinstance(value, Future):
                return None
            needs[value.name] = value
            return value.name

        Pickler(file, name_of).dump((function, args, kwargs))
        future = Future(self, "%s-%d" % (word(function), next(self._numbers)), file.getvalue(), needs, options)
        with self._changed:
            self._new.append(future)
            self._changed.notify_all()
        return future

    def scatter(self, value: Any) -> Future:
        stored = _jobs.again(lambda: _node.request(self.node, "PUT", "/v1/blobs", cloudpickle.dumps(value, protocol=4)))
        future = Future(self, "value-%d" % next(self._numbers), None, {}, None)
        future.set_result(_Place(stored["hash"], stored["bytes"], None))
        return future

    def recover(self, future: Future, place: _Place, error: NodeError) -> None:
        """Has a result computed again that no node has any more, and what it needs that is lost, too. Raises the error if that cannot be."""
        with self._changed:
            with future._condition:
                if future._state != "FINISHED" or future._result is not place:
                    return  # Somebody else was first.
                if future._call is None or future._recoveries >= _RECOVERIES:
                    raise error
                future._recoveries += 1
                # Who was told that it is done is not told again.
                future._state, future._result, future._done_callbacks = "PENDING", None, []  # type: ignore[attr-defined]
            self._new.append(future)
            self._changed.notify_all()

    def _begin_again(self, calls: List[Future], error: NodeError) -> bool:
        """Whether results are lost that these calls were given: these are computed again, and then the calls."""
        given = {name: place for call in calls for name, place in call._given.items()}
        needs = {name: need for call in calls for name, need in call._needs.items()}
        found = False
        for name, place in given.items():
            if not self._is_there(place):
                try:
                    self.recover(needs[name], place, error)
                except NodeError:
                    return False
                found = True
        if found:
            with self._changed:
                for call in calls:
                    with call._condition:
                        call._state = "PENDING"
                self._new += calls
                self._changed.notify_all()
        return found

    def _is_there(self, place: _Place) -> bool:
        try:
            next(_node.pieces(self.node, _jobs.blob_target(place.hash, place.holder)), None)
        except NodeError:
            return False
        except OSError:
            pass  # The node is away, and that says nothing of the blob.
        return True

    def cancel_all(self) -> None:
        """Ends what is under way: nobody will ask for it."""
        with self._changed:
            jobs = list(self._jobs)
        for job in jobs:
            try:
                _node.request(self.node, "POST", "/v1/jobs/%s/cancel" % job)
            except (OSError, NodeError):
                pass

    def wake(self) -> None:
        """Looks whether calls can be given to the node."""
        with self._changed:
            self._changed.notify_all()

    def _give(self) -> None:
        """Gives calls to the node as jobs, when what they need is done or goes with them."""
        while True:
            with self._changed:
                batch: List[Future] = []
                while not batch:
                    batch = self._take() if len(self._jobs) < _JOBS else []
                    if not batch:
                        self._changed.wait()
                # Until it has an id: it counts.
                self._jobs.add(batch[0].name)
            threading.Thread(target=self._run, args=(batch,), name="nodectl-futures-job", daemon=True).start()

    def _take(self) -> List[Future]:
        """Calls that can be one job. Those are failed whose needs have failed."""
        batch: Dict[str, Future] = {}
        common: Optional[Hashable] = None
        left: List[Future] = []
        bytes_given = 0
        # Who is told of a failure may make calls.
        new, self._new = self._new, []
        for future in new:
            options = future._options
            assert options is not None, "what is scattered is never new"
            outside = [need for name, need in future._needs.items() if name not in batch]
            if len(batch) >= _TOGETHER or not all(need.done() for need in outside):
                left.append(future)
                continue
            failed = [why for why in map(_failure, outside) if why is not None]
            if failed:
                if future.set_running_or_notify_cancel():
                    future.set_exception(failed[0])
                continue
            future._given = {need.name: need._result for need in outside if need._result is not None}
            size = sum(place.bytes for place in future._given.values())
            if batch and (common != options[:4] or bytes_given + size > _SMALL_BYTES):
                left.append(future)
            elif future.set_running_or_notify_cancel():
                batch[future.name], common, bytes_given = future, options[:4], bytes_given + size
        self._new = left + self._new
        return list(batch.values())

    def _run(self, batch: List[Future]) -> None:
        """Has a job run, and tells its futures how their calls ended."""
        open_ = {future.name: future for future in batch}
        job = batch[0].name
        try:
            submitted = self._submit(batch)
            with self._changed:
                self._jobs.discard(job)
                self._jobs.add(submitted)
            job = submitted
            results = _jobs.Results(self.node, job)
            while open_ and not results.is_over:
                for result in results.page(_WAIT_MS):
                    future = open_.pop(result["name"], None)
                    if future is not None:
                        self._ended(future, result)
                self.wake()
            why: Exception = RemoteError("the job %s of the call was %s" % (job, results.phase))
        except NodeError as error:
            why = error
            if self._begin_again(list(open_.values()), error):
                open_ = {}
        except Exception as error:
            why = error
        for future in open_.values():
            future.set_exception(why)
        with self._changed:
            self._jobs.discard(job)
            self._changed.notify_all()

    def _ended(self, future: Future, result: Dict[str, Any]) -> None:
        if result["status"] == "done":
            output = result["outputs"][0]
            future.set_result(_Place(output["hash"], output["bytes"], result["node"]))
            return
        why = _jobs.failure(result)
        if (result.get("failure") or {}).get("kind") == "inputs" and self._begin_again([future], NodeError(why)):
            return
        # What never began only says which it needed.
        failed = [of_need for of_need in map(_failure, future._needs.values()) if of_need is not None]
        future.set_exception(failed[0] if failed else RemoteError(why))

    def _submit(self, batch: List[Future]) -> str:
        calls = io.BytesIO()
        tables: Dict[_Options, List[Tuple[str, int, str]]] = {}
        have: Dict[str, Stored] = {}
        for future in batch:
            assert future._call is not None and future._options is not None
            within = [name for name in future._needs if name not in future._given]
            tables.setdefault(future._options, []).append((future.name, calls.tell(), "\n".join(within)))
            calls.write(future._call)
            for name, place in future._given.items():
                have["have/" + name] = Stored(place.hash, place.bytes)
        options = batch[0]._options
        assert options is not None
        sources = [*options.sources, os.path.dirname(cloudpickle.__file__)]
        made = {CALLS: calls.getvalue(), SCRIPT: CALL.encode()}
        request = {
            "name": "futures",
            "where": options.where,
            "priority": options.priority,
            "inputs": _jobs.again(lambda: upload(self.node, sources, made, stored=have)),
            "tasks": [_table(of, rows, of.python or _node.default_python(self.alone)) for of, rows in tables.items()],
        }
        return _jobs.submit(self.node, request)


def _table(options: _Options, rows: Iterable[Tuple[str, int, str]], python: str) -> Dict[str, Any]:
    """Calls that need the same, as tasks."""
    return {
        "name": "{name}",
        "command": [python, SCRIPT, "{at}"],
        "needs": ["{needs}"],
        "params": {"rows": {"columns": ["name", "at", "needs"], "rows": list(rows)}},
        "resources": {"cpus": options.cpus, "memory_bytes": options.memory, "gpus": options.gpus},
        "retries": options.retries,
        "timeout_ms": None if options.timeout is None else max(1, round(options.timeout * 1000)),
        "outputs": ["result.pickle"],
    }


def _failure(future: Future) -> Optional[BaseException]:
    """Why a future has no result, if it has ended without."""
    try:
        return future.exception(timeout=0)
    except concurrent.futures.CancelledError as cancelled:
        return cancelled
    except concurrent.futures.TimeoutError:
        return None


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
        _of_process.cancel_all()


def _after_fork() -> None:
    # A child has none of its parent's threads.
    global _lock, _of_process
    _lock, _of_process = threading.Lock(), None


# Before the node ends that this process started.
getattr(threading, "_register_atexit", __import__("atexit").register)(_finish)
os.register_at_fork(after_in_child=_after_fork)
