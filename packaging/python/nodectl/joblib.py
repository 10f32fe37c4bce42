"""A backend of joblib: what scikit-learn and others run in parallel runs on the machines of the lab.

    import joblib, nodectl.joblib

    nodectl.joblib.register()
    with joblib.parallel_config("nodectl"):
        search.fit(X, y)

Arrays of `max_nbytes` (joblib's argument, 1 MB) and more travel once to each node that works on them; its workers share them as
`numpy.memmap`, read-only. The workers stay for later calls, five minutes at most. Nodes need joblib, and what is called.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import uuid
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from . import _main, _node
from ._batches import Batches
from ._errors import PoolError, needed
from .pool import Pool

try:
    from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend, register_parallel_backend
except ImportError as _error:
    raise needed("nodectl.joblib", "joblib", _error) from None

if TYPE_CHECKING:

    class _Backend:
        """What is used here of that which joblib's backends are made from: it has no types."""

        nesting_level: Optional[int]
        inner_max_num_threads: Optional[int]
        backend_kwargs: Dict[str, Any]

        def __init__(
            self, nesting_level: Optional[int] = None, inner_max_num_threads: Optional[int] = None, **backend_kwargs: Any
        ) -> None: ...

        def reset_batch_stats(self) -> None: ...

else:

    class _Backend(AutoBatchingMixin, ParallelBackendBase):
        """As its bases."""

_IDLE_SECONDS = 300.0
# How long the first worker may take to start before there are said to be as many as nodes have cores.
_COUNT_SECONDS = 30.0
# After so many answers that arrays are missing, a batch brings them along itself.
_ASKED_AT_MOST = 2
# Variables that say how many threads numerical libraries use.
_THREADS = ParallelBackendBase.MAX_NUM_THREADS_VARS


def register(make_default: bool = False) -> None:
    """Makes `"nodectl"` a name of a backend for `joblib.parallel_config` and `joblib.Parallel`.

    :param make_default: Use it wherever no backend is named.
    """
    register_parallel_backend("nodectl", NodectlBackend, make_default=make_default)


class NodectlBackend(_Backend):
    """joblib's interface to a pool. `n_jobs=-1`, and no `n_jobs` where the backend was chosen by `parallel_config`, are all cores of
    the cluster; `n_jobs=k` are at most k batches at a time.

    :param inner_max_num_threads: Threads that numerical libraries use in a worker; by default as many as it has cores.
    :param idle_worker_timeout: Seconds after which workers that have nothing to do end.
    :param pool_options: `initializer`, `initargs`, and what `nodectl.Pool` takes: `cpus` (default: 1), `memory`, `where`, `sources`,
        `environment`, ...
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(self, nesting_level: Optional[int] = None, inner_max_num_threads: Optional[int] = None, **pool_options: Any) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads, **pool_options)
        self._options: Dict[str, Any] = dict(pool_options)
        self._workers: Optional[_Workers] = None
        self._call: Optional[_Call] = None
        self._max_nbytes: Optional[int] = 1 << 20
        self._mode = "r"

    # What joblib calls before and after

    def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
        """How many batches can run at a time."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            n_jobs = self.default_n_jobs
        if n_jobs > 0:
            return int(n_jobs)
        return max(1, _count_workers(self._options, self.inner_max_num_threads) + 1 + int(n_jobs))

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Any = None,
        require: Any = None,
        max_nbytes: Optional[int] = 1 << 20,
        mmap_mode: Optional[str] = "r",
        temp_folder: Any = None,
        verbose: int = 0,
        context: Any = None,
        **options: Any,
    ) -> int:
        if mmap_mode not in (None, "r", "c"):
            raise ValueError("mmap_mode is \"r\", \"c\" or None with nodectl, not %r: workers elsewhere cannot write to arrays here" % mmap_mode)
        self._options = {**self.backend_kwargs, **options}
        self._max_nbytes, self._mode = (None, "r") if mmap_mode is None else (max_nbytes, mmap_mode)
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._limit = n_jobs if n_jobs > 0 else None
        self._take_workers()
        return count

    def terminate(self) -> None:
        self.reset_batch_stats()
        self._call = None
        if self._workers is not None:
            self._workers.leave()
            self._workers = None

    def stop_call(self) -> None:
        self._call = None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Ends what runs: the workers too, unless they work for others."""
        call, workers = self._call, self._workers
        self._call = self._workers = None
        if call is not None:
            call.abort()
        if workers is not None:
            workers.leave(end=True)
        if ensure_ready:
            self._take_workers()

    # What it calls for each batch

    def submit(self, func: Callable[[], Any], callback: Optional[Callable[[Any], Any]] = None) -> "Future[Any]":
        """Sends a batch."""
        if self._workers is None:
            self._take_workers()
        if self._call is None:
            assert self._workers is not None
            self._call = _Call(self._workers, self._limit, self._max_nbytes, self._mode)
        future: "Future[Any]" = Future()
        if callback is not None:
            future.add_done_callback(callback)
        self._call.begin(_Batch(func, future))
        return future

    def retrieve_result_callback(self, out: "Future[Any]") -> Any:
        return out.result()

    def _take_workers(self) -> None:
        if self._workers is None:
            self._workers = _workers_for(self._options, self.inner_max_num_threads, self._limit)

    def __reduce__(self) -> Any:
        # A copy elsewhere has pools of its own.
        return NodectlBackend, (self.nesting_level, self.inner_max_num_threads)


class _Batch:
    def __init__(self, call: Callable[[], Any], future: "Future[Any]") -> None:
        self.call: Optional[Callable[[], Any]] = call
        self.future = future
        self.pickled = b""
        #: Arrays that are not in the pickle, by key.
        self.arrays: Dict[str, Any] = {}
        #: Those that are on their way to a node.
        self.awaited: Set[str] = set()
        self.asked = 0
        self.sent: Any = None


class _Call:
    """The batches of one call of `Parallel`, no more of them at a time than it said."""

    def __init__(self, workers: "_Workers", limit: Optional[int], max_nbytes: Optional[int], mode: str) -> None:
        self.workers = workers
        self.limit = limit
        self.arrays = _Arrays(max_nbytes, mode)
        self.under_way: Set[_Batch] = set()
        self._waiting: Deque[_Batch] = deque()
        # Batches that wait for an array, by its key.
        self._carried: Dict[str, List[_Batch]] = {}
        self._lock = threading.Lock()
        self._is_aborted = False

    def begin(self, batch: _Batch) -> None:
        with self._lock:
            if self.limit is not None and len(self.under_way) >= self.limit:
                self._waiting.append(batch)
                return
            self.under_way.add(batch)
        self._send_first(batch)

    def abort(self) -> None:
        with self._lock:
            self._is_aborted = True
            self._waiting.clear()
            sent = [batch.sent for batch in self.under_way]
        for future in sent:
            if future is not None and not future.done():
                future._call.forget()

    def _send_first(self, batch: _Batch) -> None:
        new: Dict[str, Any] = {}
        try:
            batch.pickled = self.arrays.dumps(self.workers.pool, batch.call, batch.arrays, new)
        except BaseException as error:
            self._end(batch, None, error)
            return
        batch.call = None
        # What only one batch uses needs no second way.
        self._send(batch, new)

    def _send(self, batch: _Batch, brought: Dict[str, Any]) -> None:
        try:
            batch.sent = self.workers.pool.submit(batch.pickled, list(batch.arrays), self.arrays.payload(brought))
        except BaseException as error:
            self._end(batch, None, error)
            return
        batch.sent.add_done_callback(functools.partial(self._answered, batch))

    def _answered(self, batch: _Batch, sent: "Future[Any]") -> None:
        error = None if sent.cancelled() else sent.exception()
        if sent.cancelled() or error is not None:
            self._end(batch, None, error or PoolError("the batch was cancelled"))
            return
        is_done, value = sent.result()
        if is_done:
            self._end(batch, value, None)
        else:
            self._supply(batch, value)

    def _supply(self, batch: _Batch, missing: List[str]) -> None:
        """A worker is on a node that has not all arrays: they are sent, each once at a time, then the batch again."""
        batch.asked += 1
        if batch.asked > _ASKED_AT_MOST:
            self._send(batch, batch.arrays)
            return
        with self._lock:
            batch.awaited = set(missing)
            new = [key for key in missing if key not in self._carried]
            for key in missing:
                self._carried.setdefault(key, []).append(batch)
        for key in new:
            try:
                carrier = self.workers.pool.submit(None, [], self.arrays.payload({key: batch.arrays[key]}))
            except BaseException:
                self._arrived(key)
            else:
                carrier.add_done_callback(functools.partial(self._arrived, key))

    def _arrived(self, key: str, _: Any = None) -> None:
        with self._lock:
            waiting = self._carried.pop(key, [])
            for batch in waiting:
                batch.awaited.discard(key)
            ready = [] if self._is_aborted else [batch for batch in waiting if not batch.awaited]
        for batch in ready:
            self._send(batch, {})

    def _end(self, batch: _Batch, value: Any, error: Optional[BaseException]) -> None:
        with self._lock:
            self.under_way.discard(batch)
            following = self._waiting.popleft() if self._waiting else None
            if following is not None:
                self.under_way.add(following)
        batch.arrays = {}
        if following is not None:
            self._send_first(following)
        if error is None:
            batch.future.set_result(value)
        else:
            batch.future.set_exception(error)


class _Arrays:
    """Which arrays a call has shipped. Changing one while the call goes on is not noticed, as with joblib's own backends."""

    def __init__(self, max_nbytes: Optional[int], mode: str) -> None:
        self.max_nbytes = max_nbytes
        self.mode = mode
        self._keys: Dict[int, Tuple[Any, str]] = {}
        self._seen: Set[str] = set()
        self._lock = threading.Lock()

    def dumps(self, pool: Pool[Any], value: Any, used: Dict[str, Any], new: Dict[str, Any]) -> bytes:
        """A pickle without the large arrays: those are put into `used`, and into `new` where no batch has used them before."""
        if self.max_nbytes is None:
            return pool._pickler.by_value(value)
        import numpy

        def reduce(values: Any) -> Any:
            if values.nbytes < (self.max_nbytes or 0) or values.dtype.hasobject or values.nbytes == 0:
                return values.__reduce_ex__(5)
            key = self._key(values)
            used[key] = values
            return _main.shared, (key,)

        pickled = pool._pickler.by_value(value, reducers={numpy.ndarray: reduce, numpy.memmap: reduce})
        with self._lock:
            new.update((key, used[key]) for key in used.keys() - self._seen)
            self._seen.update(used)
        return pickled

    def payload(self, arrays: Dict[str, Any]) -> Dict[str, Any]:
        return {key: (self.mode, _contiguous(values)) for key, values in arrays.items()}

    def _key(self, values: Any) -> str:
        with self._lock:
            known = self._keys.get(id(values))
        if known is not None and known[0]() is values:
            return known[1]
        whole = _contiguous(values)
        described = repr((self.mode, whole.dtype, whole.shape, whole.flags.c_contiguous)).encode()
        digest = hashlib.blake2b(whole.reshape(-1, order="A").view("u1").data, digest_size=16)
        digest.update(described)
        key, number = digest.hexdigest(), id(values)
        with self._lock:
            self._keys[number] = weakref.ref(values, lambda _: self._keys.pop(number, None)), key
        return key


def _contiguous(values: Any) -> Any:
    import numpy

    values = numpy.asarray(values)
    return values if values.flags.c_contiguous or values.flags.f_contiguous else numpy.ascontiguousarray(values)


class _Workers:
    """An open pool, and how many calls use it. It is closed when nobody has for a while."""

    def __init__(self, options: Dict[str, Any], threads: Optional[int], limit: Optional[int]) -> None:
        self.wanted = dict(options), threads
        self.limit = limit
        self.calls = 0
        self.is_closed = False
        self._timer: Optional[threading.Timer] = None
        options = dict(options)
        self._idle_seconds = options.pop("idle_worker_timeout", None) or _IDLE_SECONDS
        init = uuid.uuid4().hex, options.pop("initializer", None), tuple(options.pop("initargs", ()))
        options.setdefault("cpus", 1)
        options.setdefault("name", "joblib")
        cores = max(1, int(options["cpus"] or 1))
        variables = {name: str(threads or cores) for name in _THREADS}
        options["env"] = {**variables, **(options.get("env") or {})}
        self.pool: Pool[Batches] = Pool(Batches, init, max_workers=limit, **options)

    def serves(self, options: Dict[str, Any], threads: Optional[int], limit: Optional[int]) -> bool:
        """Whether a call that wants this can use it."""
        if self.is_closed or self.pool._engine.failure is not None or not _are_equal(self.wanted, (options, threads)):
            return False
        return self.calls > 0 or self.limit is None or (limit is not None and limit <= self.limit)

    def enter(self) -> None:
        self.calls += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self, end: bool = False) -> None:
        """A call has ended. `end`: what it left running is to end."""
        with _lock:
            self.calls -= 1
            if self.calls > 0:
                return
            if not end and self in _open:
                self._timer = threading.Timer(self._idle_seconds, self._close_if_idle)
                self._timer.daemon = True
                self._timer.start()
                return
            self._close()
        self.pool.close()

    def _close_if_idle(self) -> None:
        with _lock:
            if self.calls > 0 or self.is_closed:
                return
            self._close()
        self.pool.close()

    def _close(self) -> None:
        self.is_closed = True
        if self in _open:
            _open.remove(self)


# At most one, which the next call may use.
_open: List[_Workers] = []
_lock = threading.RLock()


def _workers_for(options: Dict[str, Any], threads: Optional[int], limit: Optional[int]) -> _Workers:
    with _lock:
        for workers in list(_open):
            if workers.serves(options, threads, limit):
                workers.enter()
                return workers
            # It is closed by the last call that uses it.
            _open.remove(workers)
            if workers.calls == 0:
                workers.enter()
                workers.leave(end=True)
        workers = _Workers(options, threads, limit)
        _open.append(workers)
        workers.enter()
        return workers


def _count_workers(options: Dict[str, Any], threads: Optional[int]) -> int:
    """How many workers a pool of all the cluster has."""
    workers = _workers_for(options, threads, None)
    try:
        engine = workers.pool._engine
        engine.wait(lambda: engine.workers > 0, _COUNT_SECONDS)
        if "where" in options or "gpus" in options or "memory" in options or "resources" in options:
            engine.wait(lambda: engine.starting == 0, _COUNT_SECONDS)
            return engine.workers
        cpus = options.get("cpus") or 1
        nodes = _node.request(engine.node.path, "GET", "/v1/nodes")
        takers = [one["resources"]["cpus"] for one in nodes if one["alive"] and not one["draining"]]
        return max(engine.workers, sum(int(cores // cpus) for cores in takers))
    finally:
        workers.leave()


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        # Arrays in `initargs`, for instance.
        return False


def _forked() -> None:
    global _lock
    _lock = threading.RLock()
    del _open[:]


os.register_at_fork(after_in_child=_forked)
