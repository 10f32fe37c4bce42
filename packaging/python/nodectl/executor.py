"""`Executor`: `concurrent.futures` over the cluster."""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Tuple

from ._caller import Caller
from ._calls import BufferedResults, EagerResults, FutureCall, OrderedResults
from ._errors import PoolError
from .pool import Pool


class Executor(concurrent.futures.Executor):
    """A drop-in for `ProcessPoolExecutor`. Functions and their arguments may be anything that cloudpickle takes: closures and
    lambdas too. What was submitted is run, as there: also after `shutdown(wait=False)`, and before the program ends.

    :param max_workers: The most workers; as many as the cluster has room for if None.
    :param mp_context: For compatibility: workers are fresh processes, on this machine as on others, whatever its start method.
    :param initializer: Called once in each worker, with `initargs`.
    :param max_tasks_per_child: After so many calls a worker is replaced by a fresh one; None: it lives as long as the pool.
    :param options: As for `Pool`.
    """

    def __init__(
        self,
        max_workers: Optional[int] = None,
        mp_context: Any = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Tuple[Any, ...] = (),
        *,
        max_tasks_per_child: Optional[int] = None,
        **options: Any,
    ) -> None:
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError("max_tasks_per_child must be an integer")
            if max_tasks_per_child <= 0:
                raise ValueError("max_tasks_per_child must be >= 1")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        options.setdefault("name", "executor")
        self.pool: Pool[Caller] = Pool(
            Caller, (initializer, initargs), max_workers=max_workers, max_tasks_per_worker=max_tasks_per_child, **options
        )
        # In the order in which they were submitted.
        self._pending: "Dict[concurrent.futures.Future[Any], None]" = {}
        # Those whose results nobody reads any more: the engine keeps them as long as tasks of theirs are unfinished.
        self._series: "weakref.WeakSet[OrderedResults]" = weakref.WeakSet()
        self._is_shut_down = False
        _executors.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        """A future of `fn(*args, **kwargs)`."""
        self._check()
        future = FutureCall(self.pool._engine, self.pool._pickler, (fn, args, kwargs), {}).future
        self._pending[future] = None
        future.add_done_callback(lambda done: self._pending.pop(done, None))
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
    ) -> Iterator[Any]:
        """The results of `fn` over the iterables, in order. All is taken from the iterables and run at once, read or not.

        :param timeout: Seconds from now after which the next result is a `TimeoutError`.
        :param chunksize: For compatibility: tasks are batched as needed.
        :param buffersize: The most items that are taken from the iterables before their results are read; endless ones will do.
        :raises ValueError: `chunksize` or `buffersize` is less than 1.
        """
        self._check()
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        deadline = None if timeout is None else time.monotonic() + timeout
        engine, pickler = self.pool._engine, self.pool._pickler
        function = pickler.by_value(fn)
        arguments: Iterable[Tuple[Any, ...]] = zip(*iterables)
        if buffersize is None:
            arguments = list(arguments)
        calls: Iterator[Tuple[Any, Any]] = (((function, args, {}), {}) for args in arguments)
        bar = self.pool._bar(arguments)
        results: OrderedResults
        if buffersize is None:
            results = EagerResults(engine, pickler, calls, bar)
        else:
            results = BufferedResults(engine, pickler, calls, bar, buffersize)
        self._series.add(results)
        return _until(results, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers when all that was submitted is done. Nothing more is taken.

        :param wait: Return when that is so.
        :param cancel_futures: Do not run what no worker has yet. The oldest, one for each worker, may be on their way to it: they run.
        """
        is_first, self._is_shut_down = not self._is_shut_down, True
        if cancel_futures:
            for future in list(self._pending)[max(1, self.pool._engine.workers) :]:
                future.cancel()
            for results in list(self._series):
                results.cut_off()
        if wait:
            self._finish()
        elif is_first:
            threading.Thread(target=self._finish, name="nodectl-executor").start()

    def _check(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _finish(self) -> None:
        """Returns when all that was submitted is done, and the workers have ended."""
        try:
            concurrent.futures.wait(list(self._pending))
            for results in list(self._series):
                results.engine.wait(results.has_nothing_under_way, None)
        except PoolError:
            pass  # Whoever reads a result is told.
        self.pool.close()
        _executors.discard(self)


_executors: "weakref.WeakSet[Executor]" = weakref.WeakSet()


def _finish_all() -> None:
    for executor in list(_executors):
        executor._is_shut_down = True
        executor._finish()


# Where the executors of the standard library do the same: before what the program registered with `atexit`, and before the
# engine's, which ends what is unfinished.
getattr(threading, "_register_atexit", atexit.register)(_finish_all)
# A forked child has none of its parent's: their pools are closed there.
os.register_at_fork(after_in_child=_executors.clear)


def _until(results: OrderedResults, deadline: Optional[float]) -> Iterator[Any]:
    engine = results.engine
    try:
        while True:
            if deadline is not None and not results.ready and not results.is_complete():
                if not engine.wait(lambda: bool(results.ready), max(0.0, deadline - time.monotonic())):
                    raise concurrent.futures.TimeoutError()
            try:
                # The only reference to it: a large one is freed as soon as its reader is done with it.
                value = [next(results)]
            except StopIteration:
                return
            yield value.pop()
    finally:
        results.close()
