"""An executor for Parsl: apps run on the machines of the lab.

    import parsl, nodectl.parsl

    parsl.load(parsl.Config(executors=[nodectl.parsl.NodectlExecutor()]))

Nothing is started on the nodes, and no port of this machine is reached from them: there is no interchange whose loss ends the run. A
worker or a node that dies costs its task another attempt, without Parsl's `retries`. Nodes need parsl, and what the apps import.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any, Callable, Dict, Optional, Sequence

from ._errors import needed
from .executor import Executor

try:
    from parsl.executors.base import ParslExecutor
    from parsl.executors.errors import InvalidResourceSpecification
    from parsl.utils import RepresentationMixin
except ImportError as _error:
    raise needed("nodectl.parsl", "parsl", _error) from None


class NodectlExecutor(ParslExecutor, RepresentationMixin):  # type: ignore[misc, unused-ignore]
    """Parsl's interface to an `Executor`.

    :param label: The executor's name in Parsl.
    :param max_workers: The most workers; as many as the cluster has room for if None.
    :param working_dir: A directory that workers change to, for apps that name files; nodes have it where they share a file system, and
        where they have not, apps fail there. None: a directory of the worker's own, which is gone with it.
    :param storage_access: Parsl's ways to stage data; None: its usual ones.
    :param pool_options: As for `nodectl.Pool`: `cpus` (default: 1), `gpus`, `memory`, `where`, `environment`, ...
    """

    def __init__(
        self,
        label: str = "nodectl",
        max_workers: Optional[int] = None,
        working_dir: Optional[str] = None,
        storage_access: Optional[Sequence[Any]] = None,
        pool_options: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__()
        self.label = label
        self.max_workers = max_workers
        self.working_dir = working_dir
        self.storage_access = storage_access
        self.pool_options = pool_options
        self._executor: Optional[Executor] = None

    def start(self) -> None:
        options = dict(self.pool_options or {})
        if not options.get("gpus"):
            options.setdefault("cpus", 1)
        options.setdefault("name", self.label)
        if self.working_dir is not None:
            options.update(initializer=os.chdir, initargs=(os.path.abspath(self.working_dir),))
        self._executor = Executor(self.max_workers, **options)

    def submit(self, func: Callable[..., Any], resource_specification: Dict[str, Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        if resource_specification:
            names = set(resource_specification)
            raise InvalidResourceSpecification(names, "All tasks of an executor have the same: give them to `pool_options`, as for nodectl.Pool.")
        assert self._executor is not None, "Parsl starts its executors"
        return self._executor.submit(func, *args, **kwargs)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
        super().shutdown()

    def monitor_resources(self) -> bool:
        # It would fork each worker for each task; `nodectl report` has what tasks used.
        return False
