"""`Pool`: instances of a class in worker processes all over the cluster, and the calls to them."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _environment, _node
from ._calls import Bar, FutureCall, MapCall, OrderedResults, PoolFuture, Results, as_call
from ._engine import Engine
from ._errors import PoolError
from ._sizes import counted, size
from ._upload import upload

Worker = TypeVar("Worker")
# How long a worker may take to start before a pool is said to have none.
_FIRST_WORKER_SECONDS = 10.0


class Pool(Generic[Worker]):
    """Workers on the machines of the cluster, each a process with one instance of `worker_class`.

    A worker has a method `run`, called for each task, and may have `handle_update`, called between tasks with what
    `update_workers` is given. Modules of your own that are imported when the pool is opened travel as files, and workers import
    them; a class of `__main__` or of a notebook is sent along with its code.

    The pool is opened at the node of this machine. Without one, a node is started that ends with this program: alone; with a
    `password`, as a member of its cluster; with a `server_address` too, as one that does no work itself. Workers come and
    go with the nodes of the cluster. A task whose worker dies is given to another, up to `retries` times. When the node
    itself dies, the pool goes on at the next one, and computes again what was unfinished. Tasks run at least once.

    Threads may share a pool, and a program may have several. In a forked child the pools of its parent are closed.

    Without a class, `Pool()` is a `FunctionPool`: as `multiprocessing.Pool`, whose arguments it takes.

    :param worker_class: The class, or any picklable callable that returns such an object.
    :param init_data: Arguments of the class, `{'args': [...], 'kwargs': {...}}`; a tuple or a list of positional ones; or any
        other value for a single one. None for no arguments.
    :param password: The cluster's secret.
    :param server_address: Any node of the cluster, if none runs on this machine.
    :param server_port: Its port (default: 8899).
    :param cpus: Cores for each worker, e.g. 4 or 0.5. Without any resource: a GPU on nodes with GPUs, else a core.
    :param gpus: GPUs for each worker, e.g. 1 or 0.25.
    :param memory: Memory for each worker: bytes, or a text such as `"2 GiB"`.
    :param resources: Named resources of the nodes for each worker.
    :param where: Which nodes may have workers, e.g. `"gpu.memory >= 8 GiB"`.
    :param max_workers: The most workers; as many as fit if None.
    :param retries: How often a task that ended its worker is tried again. What a lost node costs does not count.
    :param timeout: Seconds after which a task is ended with its worker, and tried again elsewhere.
    :param max_tasks_per_worker: After so many tasks a worker is replaced by a fresh one.
    :param env: Variables for the workers.
    :param priority: Higher ones get their workers first.
    :param name: The job's name in listings.
    :param python: The interpreter on the nodes. Default: the variable NODECTL_PYTHON; this interpreter, on a machine
        that works alone; else `python3.X` of this version. `"match"`: this version, wherever a node has it; one that has it not
        says which it has.
    :param environment: What nodes install for the workers, once, in place of `python`: `{"requirements": "requirements.txt"}`,
        or one of `lock` (a uv.lock), `project` and `conda`; with `wheels`, a directory, from these alone. Paths are of this machine.
    :param sources: Directories and files to ship: workers find them in their working directory, under their own names, and import
        modules from there.
    :param progress: Show the progress of `map`, `imap` and `imap_unordered`.
    :param results: `"pickle"`: `run` may return any object, and whoever has taken over a worker can run code in this program. `"json"`:
        nothing that workers send is unpickled. `run` returns what JSON has a form for (arrays become lists), or `bytes`; its exceptions
        arrive as `RemoteError`.
    :raises ValueError: A number that makes no sense.
    :raises FileNotFoundError: `sources` names what is not there.
    :raises NodeError: There is no node, and none could be started.
    :raises PoolError: The node refused the pool. Methods raise it when the pool has ended: closed, cancelled, or because its
        class fails on every worker.
    """

    #: What else is asked for where it is opened.
    _more: Dict[str, Any] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> "Pool[Worker]":
        if cls is Pool and "worker_class" not in kwargs and not (args and callable(args[0])):
            from .functions import FunctionPool

            return super().__new__(FunctionPool)  # type: ignore[arg-type]
        return super().__new__(cls)

    def __init__(
        self,
        worker_class: Callable[..., Worker],
        init_data: Any = None,
        password: Optional[str] = None,
        server_address: Optional[str] = None,
        server_port: Optional[int] = None,
        *,
        cpus: Optional[float] = None,
        gpus: Optional[float] = None,
        memory: Union[int, str, None] = None,
        resources: Optional[Mapping[str, float]] = None,
        where: str = "",
        max_workers: Optional[int] = None,
        retries: int = 3,
        timeout: Optional[float] = None,
        max_tasks_per_worker: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        priority: int = 0,
        name: Optional[str] = None,
        python: Optional[str] = None,
        environment: Optional[Mapping[str, str]] = None,
        sources: Sequence[Union[str, "os.PathLike[str]"]] = (),
        progress: bool = False,
        results: str = "pickle",
    ) -> None:
        if results not in ("pickle", "json"):
            raise ValueError("results are \"pickle\" or \"json\", not %r" % (results,))
        _check_numbers(max_workers, retries, timeout, max_tasks_per_worker)
        self._progress = progress
        paths = [os.fspath(path) for path in sources]
        missing = next((path for path in paths if not os.path.exists(path)), None)
        if missing is not None:
            raise FileNotFoundError("`sources` names %s, which is not there" % missing)
        made_of, named = _environment.plan(environment, python)
        node = _node.LocalNode(password, server_address, server_port)
        # While the node starts, all else is made ready here, what pickles code among it.
        node.begin()
        from ._pickling import Pickler, init_payload

        self._pickler = Pickler(paths)
        args, kwargs = _init_arguments(init_data)
        # Where modules are found on the worker: among the files shipped, and in the directories of them.
        search = [".", *(os.path.basename(os.path.abspath(path)) for path in paths if os.path.isdir(path))]
        settings = {"path": search, "results": results, "max_tasks": max_tasks_per_worker}
        init = init_payload(self._pickler, worker_class, args, kwargs, settings)
        request: Dict[str, Any] = {
            "name": name or getattr(worker_class, "__name__", "pool"),
            "where": where,
            "retries": retries,
            "priority": priority,
            "env": {str(key): str(value) for key, value in (env or {}).items()},
        }
        wanted = _resources(cpus, gpus, memory, resources)
        if wanted is not None:
            request["resources"] = wanted
        if max_workers is not None:
            request["max_workers"] = max_workers
        if max_tasks_per_worker is not None:
            request["max_tasks_per_worker"] = max_tasks_per_worker
        if timeout is not None:
            request["timeout_ms"] = max(1, round(timeout * 1e3))
        request.update(self._more)

        def open_request(works_alone: bool) -> Dict[str, Any]:
            # Without any resource it may be that of a GPU.
            if gpus or (wanted is None and _node.may_have_gpus()) or "gpu" in where:
                _node.wait_for_gpus()
            if made_of is None:
                made = {**request, "python": python or _node.default_python(works_alone)}
            else:
                made = {**request, "environment": made_of}
            if paths or self._pickler.files or named:
                # At every opening: another node may not have them.
                made["inputs"] = upload(node.path, paths, named={**named, **self._pickler.files})
            return made

        self._engine = Engine(node, open_request, init, results == "pickle")

    # Tasks

    def map(self, data: Iterable[Any], chunksize: Optional[int] = None) -> List[Any]:
        """The results of `run` for each item, in order. The first failure is raised at once, and cancels the rest.

        An item is `{'args': [...], 'kwargs': {...}}`, or any other value for a single argument. `chunksize` is taken for
        compatibility: tasks are batched as needed.
        """
        call = MapCall(self._engine, self._pickler, map(as_call, data))
        return call.run(self._bar(data))

    def starmap(self, data: Iterable[Iterable[Any]], chunksize: Optional[int] = None) -> List[Any]:
        """As `map`; an item is a tuple of positional arguments."""
        call = MapCall(self._engine, self._pickler, ((tuple(item), {}) for item in data))
        return call.run(self._bar(data))

    def imap(self, data: Iterable[Any], chunksize: Optional[int] = None) -> OrderedResults:
        """An iterator over the results, in order, as soon as they are there. A failed task's exception is raised in its place;
        the iteration can go on after it.

        Of an endless iterable, at most 1,024 items (2 a worker, if that is more) and about 64 MiB of their arguments and
        results are between it and the reader; larger items, one for each worker.
        """
        return OrderedResults(self._engine, self._pickler, map(as_call, data), self._bar(data))

    def imap_unordered(self, data: Iterable[Any], chunksize: Optional[int] = None) -> Results:
        """As `imap`, in the order in which the tasks end."""
        return Results(self._engine, self._pickler, map(as_call, data), self._bar(data))

    def submit(self, *args: Any, **kwargs: Any) -> "PoolFuture":
        """A `concurrent.futures.Future` of `run(*args, **kwargs)`."""
        return FutureCall(self._engine, self._pickler, args, kwargs).future

    # Updates

    def update_workers(self, data: Any = None) -> None:
        """Calls `handle_update` on every worker, also on those that join later: once each, in the order of the updates,
        between tasks. Does not wait for it. `data` as an item of `map`.

        All updates are kept for workers that join later, until a `snapshot` stands for them. An exception in
        `handle_update` becomes a warning (`UpdateFailed`) here.
        """
        self._engine.update(self._pickler.call(*as_call(data)), snapshot=False)

    def snapshot(self, data: Any = None) -> None:
        """Replaces all updates so far for workers that join from now on: they get this one in place of those. Workers that
        are there get nothing. Fails with ValueError if there was no update yet."""
        self._engine.update(self._pickler.call(*as_call(data)), snapshot=True)

    # The pool

    def get_workers_count(self) -> int:
        """How many worker processes are ready now. They come one by one after the pool is opened: where there is none so far, the
        first one is waited for, 10 s at most."""
        self._engine.refresh()
        if self._engine.workers == 0:
            self.wait_for_workers(1, _FIRST_WORKER_SECONDS)
        return self._engine.workers

    def get_nodes_count(self) -> int:
        """On how many nodes they are."""
        self.get_workers_count()
        return self._engine.nodes

    def wait_for_workers(self, count: int = 1, timeout: Optional[float] = None) -> bool:
        """Waits until that many workers are ready; False if they are not after `timeout` seconds."""
        return self._engine.wait(lambda: self._engine.workers >= count, timeout)

    @property
    def job(self) -> str:
        """The id of the pool's job: for `nodectl job`, `logs`, `explain`, `cancel`."""
        return self._engine.job

    def close(self) -> None:
        """Ends the workers. What is unfinished is aborted."""
        self._engine.close()

    terminate = close

    def join(self) -> None:
        """For compatibility: `close` has waited already."""

    def __enter__(self) -> "Pool[Worker]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise PoolError(
            "a pool cannot be passed to another process\nhint: keep it out of classes and variables that tasks use"
        )

    def _crew(self) -> str:
        return "%s on %s" % (counted(self._engine.workers, "worker"), counted(self._engine.nodes, "node"))

    def __repr__(self) -> str:
        state = "closed" if self._engine.closed else self._crew()
        return "<%s %s: %s>" % (type(self).__name__, self._engine.job, state)

    def _repr_html_(self) -> str:
        from . import notebook

        engine = self._engine
        added, unfinished = engine.counts()
        lines = [self._crew(), "%d of %s done" % (added - unfinished, counted(added, "task"))]
        if engine.starting:
            lines.insert(1, "%d starting" % engine.starting)
        state = "closed" if engine.closed else "failed" if engine.failure else "open"
        return notebook.html("Pool %s" % engine.job, state, [("done", added - unfinished)], added, lines)

    def _ipython_display_(self) -> None:
        from . import notebook

        notebook.show(self, lambda: self._engine.closed or self._engine.failure is not None)

    def _bar(self, data: Any) -> Bar:
        return Bar(len(data) if hasattr(data, "__len__") else None, self._progress)


def _check_numbers(
    max_workers: Optional[int], retries: int, timeout: Optional[float], max_tasks_per_worker: Optional[int]
) -> None:
    if max_tasks_per_worker is not None and max_tasks_per_worker <= 0:
        raise ValueError("max_tasks_per_worker must be greater than 0, not %r" % (max_tasks_per_worker,))
    if max_workers is not None and max_workers <= 0:
        raise ValueError("max_workers must be greater than 0, not %r" % (max_workers,))
    if retries < 0:
        raise ValueError("retries must not be negative, as %r is" % (retries,))
    if timeout is not None and timeout <= 0:
        raise ValueError("timeout is in seconds and greater than 0, not %r" % (timeout,))


def _init_arguments(data: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    if data is None or data == {}:
        return (), {}
    if isinstance(data, (tuple, list)):
        return tuple(data), {}
    return as_call(data)


def _resources(
    cpus: Optional[float], gpus: Optional[float], memory: Union[int, str, None], named: Optional[Mapping[str, float]]
) -> Optional[Dict[str, Any]]:
    memory = None if memory is None else size(memory)
    given = {"cpus": cpus, "gpus": gpus, "memory_bytes": memory, "named": dict(named) if named else None}
    wanted = {name: value for name, value in given.items() if value is not None}
    return wanted or None
