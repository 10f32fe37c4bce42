"""`Client.submit` of LudwigCluster, over nodectl: a job that runs `run.py` once for each parameter set and repetition."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from nodectl import NodeError, _node
from nodectl._upload import upload

_SCALARS = (bool, int, float, str)
_RUNNER = "ludwigcluster_task.py"


class Client:
    """Submits jobs of a project to the cluster that this machine is a node of.

    There is no shared drive. What a task reads below `/media/research_data/<project>` are the uploaded data and its own
    `*_param2val_chunk.pkl`, a list of its one parameter set; what it writes there is its output, fetched by
    `nodectl attach JOB` or `nodectl results JOB --into DIR`. What it writes below `/var/sftp` stays in its directory on the
    worker. `run.py` runs unchanged for that; it finds the parameters in `params.json` too. What it prints is in
    `nodectl logs JOB`, not in a file of the drive.

    Both directories are there for all that a task runs, other programs included, where nodes may mount (as root, or where the
    system has user namespaces); on other nodes for Python's own functions: not for `subprocess`, `h5py` or `sqlite3`.

    :param project_name: The job's name.
    :param python: The interpreter on the nodes.
    """

    def __init__(self, project_name: str, *, python: str = "python3") -> None:
        self.project_name = project_name
        self.python = python

    def submit(
        self,
        src_ps: Sequence[Union[str, Path]],
        data_ps: Sequence[Any],
        param2val_list: Sequence[Any],
        reps: int = 1,
        test: bool = False,
        worker: Optional[str] = None,
        *,
        run: Union[str, Path] = "run.py",
        resources: Optional[Mapping[str, Any]] = None,
        outputs: Sequence[str] = (),
    ) -> str:
        """Submits one task for each parameter set and repetition; returns the job's id at once.

        `data_ps` and `param2val_list` may come in either order.

        :param src_ps: Directories and files of source code. `run.py` imports what is in a directory by its own name and by the
            directory's: `from model import …`, `from src.model import …`.
        :param data_ps: Directories and files of data.
        :param param2val_list: Parameter sets.
        :param reps: How often each of them runs.
        :param test: Tries the project out: the first parameter set alone, and once.
        :param worker: The name of the node on which all tasks run; any by default.
        :param run: The program.
        :param resources: What each task needs: `cpus`, `gpus`, `memory_bytes`.
        :param outputs: Globs of further files to keep, relative to the task's directory.
        :raises NodeError: No node runs on this machine, or it refuses the job.
        """
        if any(isinstance(one, Mapping) for one in data_ps):
            data_ps, param2val_list = param2val_list, data_ps
        if not param2val_list:
            raise ValueError("param2val_list is empty: there is nothing to run")
        if test:
            param2val_list, reps = list(param2val_list)[:1], 1
        node = _node.socket_path()
        if not _node.is_running():
            raise NodeError("no node answers at %s\nhint: `nodectl join --detach` makes this machine a node" % node)
        sources, data = [[os.fspath(path) for path in paths] for paths in (src_ps, data_ps)]
        program = os.fspath(run)
        for path in [*sources, *data, program]:
            if not os.path.exists(path):
                raise FileNotFoundError("%s is not there" % path)
        facts = {
            "project": self.project_name,
            "run": os.path.basename(program),
            "sources": [os.path.basename(os.path.abspath(path)) for path in sources],
            "data": [os.path.basename(os.path.abspath(path)) for path in data],
        }
        made = {
            _RUNNER: Path(__file__).with_name("_task.py").read_bytes(),
            "ludwigcluster_facts.json": json.dumps(facts).encode(),
            "ludwigcluster_param2vals.pkl": pickle.dumps([dict(param2val) for param2val in param2val_list], 4),
        }
        request: Dict[str, Any] = {
            "name": self.project_name,
            "command": [self.python, _RUNNER, "{param_set}"],
            "params": {"rows": _rows(param2val_list)},
            "repeat": reps,
            "inputs": upload(node, [*sources, *data, program], made),
            "outputs": ["research_data/**", *outputs],
        }
        if worker is not None:
            if not worker or "'" in worker or "\\" in worker:
                raise ValueError("%r is no name of a node" % (worker,))
            request["where"] = "name == '%s'" % worker
        if resources is not None:
            request["resources"] = dict(resources)
        return str(_node.request(node, "POST", "/v1/jobs", json.dumps(request).encode(), kind="application/json")["job"])


def _rows(param2val_list: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """A column with the number of the set, and one for each parameter that all have as a number or text."""
    shown: List[str] = [
        name
        for name in param2val_list[0]
        if name != "param_set" and name.isidentifier() and all(isinstance(one.get(name), _SCALARS) for one in param2val_list)
    ]
    rows = [[number, *(one[name] for name in shown)] for number, one in enumerate(param2val_list)]
    return {"columns": ["param_set", *shown], "rows": rows}
