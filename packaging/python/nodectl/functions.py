"""`FunctionPool`: `multiprocessing.Pool` over the cluster."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, TypeVar

from ._caller import Caller
from ._calls import Call, FutureCall, MapFuture, OrderedResults, PoolFuture, Results
from ._errors import PoolError
from .pool import Pool


Series = TypeVar("Series", bound=Call)


class AsyncResult:
    """What a call will return, as `multiprocessing.pool.AsyncResult`."""

    def __init__(
        self,
        future: PoolFuture,
        callback: Optional[Callable[[Any], Any]] = None,
        error_callback: Optional[Callable[[BaseException], Any]] = None,
    ) -> None:
        self._future = future
        self._callbacks = callback, error_callback
        # Later than the future's own end: callbacks come first.
        self._ended = threading.Event()
        future.add_done_callback(self._end)

    def get(self, timeout: Optional[float] = None) -> Any:
        """The result. Raises what the call raised, and `multiprocessing.TimeoutError` if that many seconds have passed before."""
        if not self._ended.wait(timeout):
            from multiprocessing import TimeoutError

            raise TimeoutError()
        return self._future.result()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits for the end, that many seconds at most."""
        self._ended.wait(timeout)

    def ready(self) -> bool:
        """Whether the call has ended."""
        return self._ended.is_set()

    def successful(self) -> bool:
        """Whether it raised nothing. Fails with ValueError if it has not ended."""
        if not self.ready():
            raise ValueError("%r not ready" % self)
        return self._future.exception() is None

    def _end(self, future: Any) -> None:
        try:
            if not future.cancelled():
                error = future.exception()
                callback, error_callback = self._callbacks
                if error is None and callback is not None:
                    callback(future.result())
                elif error is not None and error_callback is not None:
                    error_callback(error)
        finally:
            self._ended.set()


class FunctionPool(Pool[Caller]):
    """A drop-in for `multiprocessing.Pool`: `nodectl.Pool()` and `nodectl.Pool(4)` are one. Functions and their arguments may be
    anything that cloudpickle takes: closures and lambdas too.

    `close` takes nothing more, and the workers end when all is done; `join` waits for that. `terminate`, or the end of the `with`
    statement, aborts what is unfinished.

    :param processes: The most workers; as many as the cluster has room for if None.
    :param initializer: Called once in each worker, with `initargs`.
    :param maxtasksperchild: After so many calls a worker is replaced by a fresh one.
    :param context: For compatibility: workers are fresh processes, on this machine as on others, whatever its start method.
    :param options: As for `Pool` with a class.
    """

    def __init__(
        self,
        processes: Optional[int] = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: Optional[int] = None,
        context: Any = None,
        **options: Any,
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        options.setdefault("name", "pool")
        # What `close` has to see to its end.
        self._calls: List[Call] = []
        self._results: Dict[Any, AsyncResult] = {}
        self._closing: Optional[threading.Thread] = None
        self._is_running = False
        data = (initializer, tuple(initargs))
        super().__init__(Caller, data, max_workers=processes, max_tasks_per_worker=maxtasksperchild, **options)
        self._is_running = True

    # What is called once

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Mapping[str, Any] = {}) -> Any:
        """`func(*args, **kwds)`, by a worker."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        callback: Optional[Callable[[Any], Any]] = None,
        error_callback: Optional[Callable[[BaseException], Any]] = None,
    ) -> AsyncResult:
        """As `apply`, without waiting. `callback` gets the result, or `error_callback` the exception, in another thread."""
        return self._keep(self.submit(func, *args, **kwds), callback, error_callback)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PoolFuture:
        """A `concurrent.futures.Future` of `fn(*args, **kwargs)`."""
        self._check()
        return FutureCall(self._engine, self._pickler, (fn, args, kwargs), {}).future

    # What is called for each item

    def map(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: Optional[int] = None) -> List[Any]:  # type: ignore[override]
        """The results of `func` for each item, in order. Raises the first failure when all tasks have ended."""
        return self._wait(self.map_async(func, iterable, chunksize))

    def starmap(self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: Optional[int] = None) -> List[Any]:  # type: ignore[override]
        """As `map`; an item is a tuple of positional arguments."""
        return self._wait(self.starmap_async(func, iterable, chunksize))

    def map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: Optional[int] = None,
        callback: Optional[Callable[[Any], Any]] = None,
        error_callback: Optional[Callable[[BaseException], Any]] = None,
    ) -> AsyncResult:
        """As `map`, without waiting. `callback` gets the list of results, or `error_callback` the exception, in another thread."""
        return self._map_async(func, ((item,) for item in iterable), callback, error_callback)

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: Optional[int] = None,
        callback: Optional[Callable[[Any], Any]] = None,
        error_callback: Optional[Callable[[BaseException], Any]] = None,
    ) -> AsyncResult:
        """As `starmap`, without waiting. Callbacks as for `map_async`."""
        return self._map_async(func, iterable, callback, error_callback)

    def imap(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> OrderedResults:  # type: ignore[override]
        """An iterator over the results, in order, as soon as they are there. A failed call's exception is raised in its place; the
        iteration can go on after it. Of an endless iterable no more is taken than `Pool.imap` says."""
        self._check(chunksize)
        return self._series(OrderedResults(self._engine, self._pickler, self._items(func, iterable), self._bar(iterable)))

    def imap_unordered(self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> Results:  # type: ignore[override]
        """As `imap`, in the order in which the calls end."""
        self._check(chunksize)
        return self._series(Results(self._engine, self._pickler, self._items(func, iterable), self._bar(iterable)))

    # Its end

    def close(self) -> None:
        """Takes nothing more. The workers end when all that was given is done."""
        if self._is_running:
            self._is_running = False
            self._closing = threading.Thread(target=self._finish, name="nodectl-close")
            self._closing.start()

    def terminate(self) -> None:
        """Ends the workers. What is unfinished is aborted."""
        self._is_running = False
        super().close()

    def join(self) -> None:
        """Waits for the end of the workers. `close` or `terminate` comes first."""
        if self._is_running:
            raise ValueError("Pool is still running")
        if self._closing is not None:
            self._closing.join()

    def __enter__(self) -> "FunctionPool":
        self._check()
        return self

    def __exit__(self, *_: Any) -> None:
        self.terminate()

    def _check(self, chunksize: Optional[int] = None) -> None:
        if not self._is_running:
            raise ValueError("Pool not running")
        if chunksize is not None and chunksize < 1:
            raise ValueError("Chunksize must be 1+, not %r" % (chunksize,))

    def _items(self, func: Callable[..., Any], iterable: Iterable[Any]) -> Iterable[Tuple[Any, Dict[str, Any]]]:
        function = self._pickler.by_value(func)
        return (((function, (item,), {}), {}) for item in iterable)

    def _map_async(self, func: Any, arguments: Iterable[Iterable[Any]], *callbacks: Any) -> AsyncResult:
        self._check()
        function = self._pickler.by_value(func)
        items: Iterable[Any] = (((function, tuple(args), {}), {}) for args in arguments)
        return self._keep(MapFuture(self._engine, self._pickler, items).future, *callbacks)

    def _keep(self, future: PoolFuture, *callbacks: Any) -> AsyncResult:
        result = self._results[future] = AsyncResult(future, *callbacks)
        # An ended one has a result, which is not ours to keep.
        future.add_done_callback(lambda done: self._results.pop(done, None))
        return result

    def _series(self, results: Series) -> Series:
        self._calls = [one for one in self._calls if not one.is_complete()] + [results]
        return results

    def _wait(self, result: AsyncResult) -> List[Any]:
        try:
            results: List[Any] = result.get()
            return results
        except BaseException:
            # Of an interrupted program; else it has ended.
            result._future._call.forget()
            raise

    def _finish(self) -> None:
        try:
            for call in self._calls:
                call.take_all()
                self._engine.wait(call.is_complete, None)
            concurrent.futures.wait(list(self._results))
        except PoolError:
            pass  # Whoever reads a result is told.
        super().close()
