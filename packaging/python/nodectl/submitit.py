"""submitit's executor: `submitit.AutoExecutor(folder, cluster="nodectl")` runs functions on the machines of the lab.

Submitted functions and their results are files in a folder, as submitit has them everywhere: nodes have to share it, and need submitit
and this package in the Python that submits. A node that dies costs the attempts that ran there, without a word to the function.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Type, Union

from . import _jobs, _node
from ._errors import NodeError, needed

try:
    from submitit.core import core, job_environment, logger, utils
except ImportError as _error:
    raise needed("nodectl.submitit", "submitit", _error) from None

# What a process ends with that is to be started again from its checkpoint.
_AGAIN = 144
# What a process of ours ends with whose function had to be stopped: as of `timeout`.
_OUT_OF_TIME = 124
_GB = 1 << 30
_STATES = {"waiting": "PENDING", "running": "RUNNING", "done": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}
#: Of `update_parameters`, beside those that all executors have.
_OWN = {"setup", "signal_delay_s", "array_parallelism", "where", "priority", "env"}


class NodectlInfoWatcher(core.InfoWatcher):  # type: ignore[misc, unused-ignore]
    """Asks the node of this machine how jobs are."""

    def __init__(self, delay_s: int = 1) -> None:
        super().__init__(delay_s)
        self._results: Dict[str, _jobs.Results] = {}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return str(self.get_info(job_id, mode).get("State", "UNKNOWN"))

    def clear(self) -> None:
        super().clear()
        self._results.clear()

    def update(self) -> None:
        self._num_calls += 1
        waiting: Dict[str, List[str]] = {}
        for job_id in self._registered - self._finished:
            waiting.setdefault(job_id.partition("_")[0], []).append(job_id)
        for raw, ids in waiting.items():
            try:
                self._look(raw, ids)
            except NodeError as error:
                logger.get_logger().warning("Call #%d - the state may be inaccurate: %s", self._num_calls, error)
        self._last_status_check = time.time()
        self._finished.update(job_id for ids in waiting.values() for job_id in ids if self.is_done(job_id, mode="cache"))

    def _look(self, raw: str, ids: List[str]) -> None:
        results = self._results.get(raw)
        if results is None:
            results = self._results[raw] = _jobs.Results(_node.socket_path(), raw)
        page = results.page()
        for result in page:
            state = _STATES[result["status"]] if result["status"] in _STATES else "FAILED"
            failure = result["failure"]["message"] if result.get("failure") else ""
            info = {"JobID": raw, "State": state, "NodeList": result.get("node_name") or result["node"], "Reason": failure}
            self._info_dict["%s_%d" % (raw, result["task"])] = info
            if raw in ids:
                self._info_dict[raw] = info
        for job_id in ids:
            known = self._info_dict.get(job_id, {}).get("State")
            if known in (None, "PENDING", "RUNNING"):
                self._info_dict[job_id] = {"JobID": job_id, "State": "RUNNING" if page else _STATES[results.phase]}


class NodectlJob(core.Job[core.R]):  # type: ignore[misc, unused-ignore]
    """A task of a job of the cluster."""

    watcher: NodectlInfoWatcher = NodectlInfoWatcher()

    def done(self, force_check: bool = False) -> bool:
        # The node is on this machine: asking costs nothing.
        return bool(super().done(force_check=True))

    def exception(self) -> Optional[Union[utils.UncompletedJobError, utils.FailedJobError]]:
        """The first error that one of its processes tells of itself: the one that fails ends the others, and most of those
        tell nothing.
        """
        found = super().exception()
        if isinstance(found, utils.UncompletedJobError):
            errors = (process.exception() for process in self._sub_jobs or [])
            found = next((error for error in errors if isinstance(error, utils.FailedJobError)), found)
        return found

    @property
    def state(self) -> str:
        return str(self.watcher.get_state(self.job_id, mode="force"))

    def cancel(self, check: bool = True) -> None:
        raw, _, task = self.job_id.partition("_")
        try:
            _jobs.cancel(_node.socket_path(), raw, [int(task)] if task else [])
        except NodeError:
            if check:
                raise


class NodectlJobEnvironment(job_environment.JobEnvironment):  # type: ignore[misc, unused-ignore]
    """What a submitted function may know of its job."""

    _env = {
        "job_id": "NODECTL_JOB_ID",
        "num_tasks": "NODECTL_WORLD_SIZE",
        "num_nodes": "NODECTL_NODES",
        "node": "NODECTL_NODE_RANK",
        "global_rank": "NODECTL_RANK",
        "local_rank": "NODECTL_LOCAL_RANK",
    }

    @property
    def array_job_id(self) -> Optional[str]:
        return self.raw_job_id if os.environ.get("SUBMITIT_NODECTL_ARRAY") else None

    @property
    def array_task_id(self) -> Optional[str]:
        return os.environ["NODECTL_TASK_ID"] if os.environ.get("SUBMITIT_NODECTL_ARRAY") else None

    @property
    def hostnames(self) -> Sequence[str]:
        """Addresses of the job's nodes, in the order of their ranks."""
        path = os.environ.get("NODECTL_HOSTFILE")
        if path is None:
            return [self.hostname]
        with open(path) as file:
            return [line.split()[0] for line in file if line.strip()]

    def _requeue(self, countdown: int) -> None:
        logger.get_logger().info("Requeued job %s (%d remaining timeouts)", self.job_id, countdown)
        sys.exit(_AGAIN)


class NodectlExecutor(core.PicklingExecutor):  # type: ignore[misc, unused-ignore]
    """Submits functions at the node of this machine.

    :param folder: Where functions, results and logs are; nodes have it, too.
    :param max_num_timeout: How often a function that has a checkpoint is started again when its time is over.
    :param python: The interpreter on the nodes; by default the path of this one.
    """

    job_class: Type[core.Job[Any]] = NodectlJob

    def __init__(self, folder: Any, max_num_timeout: int = 3, max_pickle_size_gb: float = 1.0, python: Optional[str] = None) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout, max_pickle_size_gb=max_pickle_size_gb)
        self.python: str = shlex.quote(sys.executable) if python is None else python
        utils.JobPaths.get_first_id_independent_folder(self.folder).mkdir(parents=True, exist_ok=True)

    @classmethod
    def affinity(cls) -> int:
        return 2 if _node.is_running() else -1

    @classmethod
    def _valid_parameters(cls) -> Set[str]:
        return set(_OWN)

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = _OWN | _of_all_executors()
        unknown = set(kwargs) - known
        if unknown:
            text = "unknown parameters: %s\nhint: these are known: %s"
            raise ValueError(text % (", ".join(sorted(unknown)), ", ".join(sorted(known))))
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(self, delayed_submissions: List[Any]) -> List[Any]:
        """One job, of a task for each function."""
        timeout_min = self.parameters.get("timeout_min", 5)
        place = utils.JobPaths.get_first_id_independent_folder(self.folder)
        place.mkdir(parents=True, exist_ok=True)
        pickles: List[Path] = []
        for delayed in delayed_submissions:
            delayed.set_timeout(timeout_min, self.max_num_timeout)
            path = place / ("%s.pkl" % uuid.uuid4().hex)
            delayed.dump(path)
            pickles.append(path)
            size = path.stat().st_size * len(delayed_submissions) / _GB
            if len(pickles) == 1 and size > self.max_pickle_size_gb:
                path.unlink()
                text = "functions and arguments are about %.2f GB as pickles, and max_pickle_size_gb is %.2f\nhint: name files in arguments"
                raise RuntimeError(text % (size, self.max_pickle_size_gb))
        ids = self._submit(len(pickles))
        jobs = []
        for job_id, path in zip(ids, pickles):
            job: Any = NodectlJob(self.folder, job_id, list(range(self._num_tasks())))
            job.paths.move_temporary_file(path, "submitted_pickle")
            jobs.append(job)
        return jobs

    def _submit(self, count: int) -> List[str]:
        """The ids of a job's tasks."""
        path, _ = _jobs.open_node()
        given = self.parameters
        nodes, per_node = given.get("nodes", 1), given.get("tasks_per_node", 1)
        env = {str(name): str(value) for name, value in (given.get("env") or {}).items()}
        env.update(SUBMITIT_EXECUTOR="nodectl", SUBMITIT_NODECTL_ARRAY="1" if count > 1 else "")
        request: Dict[str, Any] = {
            "name": given.get("name", "submitit"),
            "command": ["bash", "-c", _jobs.literal(self._script())],
            "repeat": count,
            "retries": 0,
            "env": {name: _jobs.literal(value) for name, value in {**_passed_on(), **env}.items()},
            "where": given.get("where", ""),
            "priority": given.get("priority", 0),
            "at_once": given.get("array_parallelism"),
            "resources": {
                "cpus": given.get("cpus_per_task", 1),
                "gpus": given.get("gpus_per_node", 0) / per_node,
                "memory_bytes": round(given.get("mem_gb", 0) * _GB / per_node),
            },
        }
        if nodes * per_node > 1:
            request.update(nodes=nodes, per_node=per_node)
        job = _jobs.submit(path, request)
        return [job] if count == 1 else ["%s_%d" % (job, task) for task in range(count)]

    def _script(self) -> str:
        """What each process of a job runs."""
        given = self.parameters
        seconds = 60 * given.get("timeout_min", 5)
        run = [self.python, "-u", "-m", "nodectl.submitit", shlex.quote(str(self.folder)), "%g" % seconds, "%g" % given.get("signal_delay_s", 90)]
        if given.get("stderr_to_stdout"):
            run.append("--stderr-to-stdout")
        lines = ["cd %s" % shlex.quote(os.getcwd()), *given.get("setup", ()), "exec " + " ".join(run)]
        return " &&\n".join(lines)

    def _num_tasks(self) -> int:
        return int(self.parameters.get("nodes", 1) * self.parameters.get("tasks_per_node", 1))

    # Of executors that call programs.

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        raise NotImplementedError("submitted functions need no file: they are tasks of one job")

    def _make_submission_command(self, submission_file_path: Path) -> List[str]:
        raise NotImplementedError("no program is called to submit")

    @staticmethod
    def _get_job_id_from_submission_command(string: Any) -> str:
        raise NotImplementedError("no program is called to submit")


def _of_all_executors() -> Set[str]:
    """Parameters that submitit has for all executors."""
    from submitit.auto.auto import AutoExecutor

    return set(AutoExecutor._typed_parameters())


def _passed_on() -> Dict[str, str]:
    """What of this program's environment finds the same programs and modules on nodes that share its directories."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "SUBMITIT_PREEMPT_SIGNAL") if os.environ.get(name)}


class _Process:
    """One process of a job, on its node: runs the function, says when its time is nearly over, and begins again where submitit's
    checkpoint says so."""

    def __init__(self, folder: str, seconds: float, delay: float, joins_streams: bool) -> None:
        self.command = [sys.executable, "-u", "-m", "submitit.core._submit", folder]
        self.seconds = seconds
        self.delay = min(delay, seconds / 2)
        env = NodectlJobEnvironment()
        self.paths = utils.JobPaths(folder, env.job_id, env.global_rank)
        self.paths_of_first = utils.JobPaths(folder, env.job_id, 0)
        self.signal = env._usr_sig()
        self.paths.folder.mkdir(parents=True, exist_ok=True)
        self.stdout = self.paths.stdout.open("a")
        self.stderr = self.stdout if joins_streams else self.paths.stderr.open("a")

    def run(self) -> int:
        """The exit status of the function's last process."""
        while True:
            status, is_over = self._once()
            # Other ranks than the first have no say: they are stopped, and begin again beside it if it has not ended.
            begins_again = status == _AGAIN or (is_over and self.paths.task_id != 0 and not self.paths_of_first.result_pickle.exists())
            if not begins_again:
                return status

    def _once(self) -> Tuple[int, bool]:
        """How one process ended, and whether its time was over."""
        process = subprocess.Popen(self.command, stdout=self.stdout, stderr=self.stderr)
        for wait, then in ((self.seconds - self.delay, self.signal), (self.delay, signal.SIGKILL)):
            try:
                return process.wait(wait), False
            except subprocess.TimeoutExpired:
                process.send_signal(then)
        process.wait()
        return _OUT_OF_TIME, True


def main(arguments: List[str]) -> int:
    folder, seconds, delay, *more = arguments
    return _Process(folder, float(seconds), float(delay), bool(more)).run()


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    # Of one that a signal ended, as shells say it.
    sys.exit(128 - _status if _status < 0 else _status)
