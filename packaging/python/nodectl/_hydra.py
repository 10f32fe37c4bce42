"""The worker of Hydra's launcher: runs jobs of a sweep. The module travels by value: workers need no package of ours, but hydra-core."""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Optional, Tuple


class Sweep(NamedTuple):
    """What the jobs of a sweep have in common."""

    hydra_context: Any
    task_function: Any
    config: Any
    #: Hydra's singletons, among them the resolvers of the program.
    state: Any
    #: Where the program was started.
    directory: str
    #: A file in the sweep's directory, to see whether that is shared.
    mark: str


class Jobs:
    """Runs one job of the sweep after the other."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep

    def run(self, number: int, overrides: List[str]) -> Tuple[Any, Optional[bytes]]:
        """Hydra's result; and, where the sweep's directory is not shared, the files of the job's directory, packed."""
        import tempfile

        from hydra.core.hydra_config import HydraConfig
        from hydra.core.singleton import Singleton
        from hydra.core.utils import run_job, setup_globals
        from omegaconf import open_dict

        sweep = self.sweep
        setup_globals()
        Singleton.set_state(sweep.state)
        is_shared = os.path.exists(sweep.mark)
        if is_shared:
            # Hydra notes where a job began.
            os.chdir(sweep.directory)
        config = sweep.hydra_context.config_loader.load_sweep_config(sweep.config, overrides)
        with open_dict(config):
            config.hydra.job.id = "%s_%d" % (config.hydra.job.name, number)
            config.hydra.job.num = number
            if not is_shared:
                config.hydra.sweep.dir = tempfile.mkdtemp(dir=os.getcwd())
        HydraConfig.instance().set_config(config)
        result = run_job(
            hydra_context=sweep.hydra_context,
            config=config,
            task_function=sweep.task_function,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        return result, None if is_shared else _packed(config.hydra.sweep.dir)


def _packed(directory: str) -> bytes:
    """A directory's files, which go with it."""
    import io
    import shutil
    import tarfile

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", dereference=True) as archive:
        archive.add(directory, ".")
    shutil.rmtree(directory, ignore_errors=True)
    return made.getvalue()


def brought_back(result: Any, files: Optional[bytes], sweep_dir: str) -> Any:
    """Hydra's result of a job, with its files in the sweep's directory."""
    import io
    import tarfile

    from omegaconf import OmegaConf, read_write

    if files is None:
        return result
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        for member in archive:
            name = os.path.normpath(member.name)
            if os.path.isabs(name) or name.startswith(os.pardir) or not (member.isfile() or member.isdir()):
                raise ValueError("a node sent %s, which is no file of a job's directory" % member.name)
            archive.extract(member, sweep_dir)
    # It was elsewhere on the node.
    there = str(OmegaConf.select(result.hydra_cfg, "hydra.sweep.dir"))
    with read_write(result.hydra_cfg.hydra):
        result.hydra_cfg.hydra.sweep.dir = sweep_dir
        result.hydra_cfg.hydra.runtime.output_dir = os.path.abspath(result.hydra_cfg.hydra.runtime.output_dir.replace(there, sweep_dir, 1))
    result.working_dir = result.working_dir.replace(there, sweep_dir, 1)
    return result
