"""`Executor`: `concurrent.futures` over the cluster."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Set, Tuple

from ._calls import FutureCall, OrderedResults
from .pool import Pool


class _Caller:
    """The worker: calls any function. Functions that came as bytes are made once."""

    def __init__(self, initializer: Optional[Callable[..., Any]], initargs: Tuple[Any, ...]) -> None:
        self.functions: Dict[bytes, Any] = {}
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if isinstance(function, bytes):
            made = self.functions.get(function)
            if made is None:
                import pickle

                if len(self.functions) >= 256:
                    self.functions.clear()
                made = self.functions[function] = pickle.loads(function)
            function = made
        return function(*args, **kwargs)


class Executor(concurrent.futures.Executor):
    """A drop-in for `ProcessPoolExecutor`. Functions and their arguments may be anything that cloudpickle takes: closures and
    lambdas too.

    :param max_workers: The most workers; as many as the cluster has room for if None.
    :param initializer: Called once in each worker, with `initargs`.
    :param options: As for `Pool`.
    """

    def __init__(
        self,
        max_workers: Optional[int] = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        options.setdefault("name", "executor")
        self.pool: Pool[_Caller] = Pool(_Caller, (initializer, initargs), max_workers=max_workers, **options)
        self._pending: Set[Any] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        """A future of `fn(*args, **kwargs)`."""
        engine, pickler = self.pool._engine, self.pool._pickler
        future = FutureCall(engine, pickler.call((fn, args, kwargs), {})).future
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """The results of `fn` over the iterables, in order. As `Pool.imap`, it does not run ahead of its reader without bound.

        :param timeout: Seconds from now after which the next result is a `TimeoutError`.
        """
        function = self.pool._pickler.by_value(fn)
        calls: Iterator[Tuple[Any, Any]] = (((function, args, {}), {}) for args in zip(*iterables))
        deadline = None if timeout is None else time.monotonic() + timeout
        results = OrderedResults(self.pool._engine, self.pool._pickler, calls, self.pool._bar(iterables[0]))
        return _until(results, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers: when all futures are done, or at once without `wait`."""
        pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            concurrent.futures.wait(pending)
        self.pool.close()


def _until(results: OrderedResults, deadline: Optional[float]) -> Iterator[Any]:
    engine = results.engine
    try:
        while True:
            if deadline is not None and not results.ready and not results.is_complete():
                if not engine.wait(lambda: bool(results.ready), max(0.0, deadline - time.monotonic())):
                    raise concurrent.futures.TimeoutError()
            try:
                value = next(results)
            except StopIteration:
                return
            yield value
    finally:
        results.close()
