"""Hydra's launcher for the machines of a lab: `python app.py --multirun hydra/launcher=nodectl rate=0.1,0.01`.

The jobs of a sweep run on workers of a pool, as many as there is room for. Nodes need hydra-core, and what the program imports.
"""

import logging
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

_log = logging.getLogger(__name__)


# Hydra loads this module in ways that leave types in strings unread: no `from __future__ import annotations` here.
@dataclass
class NodectlLauncherConf:
    """Options of a pool, each for one job of the sweep."""

    _target_: str = "hydra_plugins.hydra_nodectl_launcher.NodectlLauncher"
    # The most jobs at a time; all that there is room for if missing.
    max_workers: Optional[int] = None
    cpus: float = 1
    gpus: float = 0
    # Bytes.
    memory: int = 0
    # Which nodes may run jobs, as in a job file.
    where: str = ""
    # How often a job is tried again that ended its process, not one that raised an exception.
    retries: int = 3
    # Seconds.
    timeout: Optional[float] = None
    priority: int = 0
    name: str = "hydra"
    # The interpreter on the nodes, and what they install if it is not to be that.
    python: Optional[str] = None
    environment: Dict[str, Any] = field(default_factory=dict)
    # Files and directories that jobs import or read, beside the program.
    sources: List[str] = field(default_factory=list)
    env: Dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/launcher", name="nodectl", node=NodectlLauncherConf, provider="nodectl")


class NodectlLauncher(Launcher):  # type: ignore[misc, unused-ignore]
    """Hydra's interface to a pool."""

    def __init__(self, **options: Any) -> None:
        given: Any = OmegaConf.to_container(OmegaConf.create(options), resolve=True)
        self.options = {name: value for name, value in given.items() if name == "retries" or value not in (None, "", 0, {}, [])}
        self.config: Optional[DictConfig] = None
        self.task_function: Optional[TaskFunction] = None
        self.hydra_context: Optional[HydraContext] = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = hydra_context
        self.task_function = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        # Hydra loads all launchers that are installed, whichever is used.
        import nodectl
        from nodectl import _hydra

        config = self.config
        assert config is not None and self.hydra_context is not None and self.task_function is not None
        setup_globals()
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        sweep_dir = Path(str(config.hydra.sweep.dir))
        sweep_dir.mkdir(parents=True, exist_ok=True)
        for index, overrides in enumerate(job_overrides):
            _log.info("\t#%d : %s", initial_job_idx + index, " ".join(filter_overrides(overrides)))
        mark = _mark(sweep_dir)
        sweep = _hydra.Sweep(self.hydra_context, self.task_function, config, Singleton.get_state(), os.getcwd(), str(mark.absolute()))
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        try:
            with nodectl.Pool(_hydra.Jobs, (sweep,), **self.options) as pool:
                ended = pool.starmap(zip(numbers, [list(overrides) for overrides in job_overrides]))
        finally:
            mark.unlink(missing_ok=True)
        return [_hydra.brought_back(result, files, str(sweep_dir)) for result, files in ended]


def _mark(directory: Path) -> Path:
    """A file by which nodes see that they share the directory."""
    mark = directory / (".nodectl-" + uuid.uuid4().hex)
    mark.touch()
    return mark
