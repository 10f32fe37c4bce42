"""Snakemake's jobs on the machines of a lab: `snakemake --executor nodectl --jobs 100`.

Jobs that are ready at the same time are submitted together, as tasks of one job of the cluster, and each starts as soon as a node
has room. What Snakemake cannot know, a machine that dies or leaves, costs only the attempts that ran there. Nodes need Snakemake, and
what the rules run.
"""

import os
from dataclasses import dataclass, field
from typing import Any, AsyncGenerator, Dict, List, Optional, Tuple

from nodectl import NodeError, _jobs
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase, SharedFSUsage

from . import files

# How often the node of this machine is asked what has ended.
_LOOK_SECONDS = 0.2
# So many jobs are submitted together at the most.
_TOGETHER = 256
# What Snakemake's own process takes beside a rule, on the node.
_OF_SNAKEMAKE_BYTES = 300_000_000
# Rules and profiles name GPUs by one of these.
_GPUS = ("gpu", "gpus", "nvidia_gpu")


_WHERE = "Which nodes may run jobs, e.g. \"labels.rack == 'b'\"; the resource nodectl_where of a rule says it for that rule."


# Snakemake reads the types of these fields: no `from __future__ import annotations` here.
@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc, unused-ignore]
    where: Optional[str] = field(default=None, metadata={"help": _WHERE})
    priority: int = field(default=0, metadata={"help": "Jobs of a higher priority start first.", "type": int})


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    # They are in the job's environment, where listings of processes do not show them.
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    pass_group_args=True,
    can_transfer_local_files=True,
)


class _Batch:
    """What was submitted together."""

    def __init__(self, node: str, job: str, infos: Dict[str, SubmittedJobInfo]) -> None:
        self.results = _jobs.Results(node, job)
        #: Those that have not ended, by the names of their tasks.
        self.active = infos


class Executor(RemoteExecutor):  # type: ignore[misc, unused-ignore]
    """Snakemake's interface to the node of this machine."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # The thread that looks what has ended begins in there.
        self.batches: List[_Batch] = []
        self._threads = 1
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        try:
            self.node, _ = _jobs.open_node()
        except NodeError as error:
            raise WorkflowError(str(error)) from None
        usage = self.workflow.storage_settings.shared_fs_usage
        self.shares_files = SharedFSUsage.INPUT_OUTPUT in usage
        self.shares_software = SharedFSUsage.SOFTWARE_DEPLOYMENT in usage
        self.next_seconds_between_status_checks = _LOOK_SECONDS

    @property
    def cores(self) -> int:
        # What the job in hand may use of its node.
        return self._threads

    def run_job(self, job: JobExecutorInterface) -> None:
        self._submit([job])

    def run_jobs(self, jobs: List[JobExecutorInterface]) -> None:
        for job in jobs:
            self.run_job_pre(job)
        places: Dict[str, List[JobExecutorInterface]] = {}
        for job in jobs:
            places.setdefault(self._where(job), []).append(job)
        # Files that travel are those of one job.
        together = _TOGETHER if self.shares_files else 1
        for alike in places.values():
            for first in range(0, len(alike), together):
                self._submit(alike[first : first + together])

    def _submit(self, jobs: List[JobExecutorInterface]) -> None:
        """Jobs for the same nodes, as one job of the cluster."""
        request: Dict[str, Any] = {
            "name": "snakemake",
            "where": self._where(jobs[0]),
            "priority": self.workflow.executor_settings.priority,
            # Snakemake counts attempts itself: `retries` of rules. Those that a lost machine costs do not count.
            "retries": 0,
            "env": self._environment(),
        }
        tables: Dict[Tuple[Any, ...], List[Tuple[str, str]]] = {}
        infos: Dict[str, SubmittedJobInfo] = {}
        try:
            for job in jobs:
                name = "%s-%d" % (word_of(job), len(infos))
                infos[name] = SubmittedJobInfo(job)
                tables.setdefault(_needs(job), []).append((name, self._script(job)))
            request["tasks"] = [_table(needs, rows, not self.shares_files) for needs, rows in tables.items()]
            if not self.shares_files:
                request["inputs"] = files.upload(self.node, self.dag, jobs[0])
            batch = _Batch(self.node, _jobs.submit(self.node, request), infos)
        except (OSError, NodeError, files.NotBelow) as error:
            for info in infos.values():
                self.report_job_error(info, msg="%s\n" % error)
            return
        self.batches.append(batch)
        for name, info in infos.items():
            info.external_jobid, info.aux = "%s %s" % (batch.results.job, name), {"batch": batch, "name": name}
            self.report_job_submission(info)

    def _where(self, job: JobExecutorInterface) -> str:
        return str(job.resources.get("nodectl_where") or self.workflow.executor_settings.where or "")

    def _environment(self) -> Dict[str, str]:
        env = dict(self.envvars())
        if self.shares_software and "PATH" in os.environ:
            # The same programs as here, as the nodes see them.
            env.setdefault("PATH", os.environ["PATH"])
        return {name: _jobs.literal(value) for name, value in env.items()}

    def _script(self, job: JobExecutorInterface) -> str:
        self._threads = max(1, job.threads)
        run = self.format_job_exec(job)
        return "cd %s &&\n%s" % (files.quoted(os.getcwd()), run) if self.shares_files else files.script(job, run)

    async def check_active_jobs(self, active_jobs: List[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        for batch in list(self.batches):
            try:
                await self._look(batch)
            except NodeError as error:
                # Snakemake has nobody else to ask.
                for info in batch.active.values():
                    self.report_job_error(info, msg="%s\n" % error)
                batch.active.clear()
            if not batch.active:
                self.batches.remove(batch)
        for info in active_jobs:
            if info.aux["name"] in info.aux["batch"].active:
                yield info

    async def _look(self, batch: _Batch) -> None:
        """Tells Snakemake what has ended."""
        while batch.active:
            async with self.status_rate_limiter:
                page = batch.results.page()
            for result in page:
                info = batch.active.pop(result["name"], None)
                if info is not None:
                    self._ended(batch.results.job, result, info)
            if not page:
                break
        if batch.results.is_over:
            for info in batch.active.values():
                self.report_job_error(info, msg="its job %s was %s\n" % (batch.results.job, batch.results.phase))
            batch.active.clear()

    def _ended(self, job: str, result: Dict[str, Any], info: SubmittedJobInfo) -> None:
        log = self._keep_log(job, result, info.job)
        if result["status"] == "done":
            try:
                if not self.shares_files:
                    files.fetch(self.node, result, info.job)
                self.report_job_success(info)
                return
            except (OSError, NodeError, files.NotBelow) as error:
                why = "its files did not come back: %s" % error
        else:
            failure = result["failure"]["message"] if result.get("failure") else result["status"]
            why = "%s, on %s" % (failure, result.get("node_name") or result["node"])
        self.report_job_error(info, msg="%s\n" % why, aux_logs=[log])

    def print_job_error(self, job_info: SubmittedJobInfo, msg: Optional[str] = None, **kwargs: Any) -> None:
        if msg and job_info.job.is_group():
            # Of a group Snakemake shows which rules it has, and passes over why it failed.
            self.logger.error("Error in group %s: %s" % (job_info.job.groupid, msg.strip()))
        super().print_job_error(job_info, msg, **kwargs)

    def _keep_log(self, job: str, result: Dict[str, Any], of: JobExecutorInterface) -> str:
        """The file with what a job's process said, below the workflow's directory."""
        path = os.path.abspath(os.path.join(".snakemake", "nodectl", word_of(of), "%s-%d.log" % (job, result["task"])))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            for stream in ("stdout", "stderr"):
                file.write(_jobs.log(self.node, job, result, stream))
        return path

    def cancel_jobs(self, active_jobs: List[SubmittedJobInfo]) -> None:
        # All that is active, also what is being asked for just now.
        for batch in list(self.batches):
            try:
                _jobs.cancel(self.node, batch.results.job)
            except NodeError as error:
                self.logger.error("could not cancel %s: %s" % (batch.results.job, error))


def word_of(job: JobExecutorInterface) -> str:
    """What a job's task and log are called by: its rule, or its group."""
    return _jobs.word(job.groupid if job.is_group() else job.name)


def _needs(job: JobExecutorInterface) -> Tuple[Any, ...]:
    """Cores, bytes of memory, GPUs and milliseconds of a job."""
    wanted = job.resources
    memory = wanted.get("mem_mb")
    gpus = [wanted.get(name) for name in _GPUS if _is_number(wanted.get(name))]
    minutes = wanted.get("runtime")
    return (
        max(1, job.threads),
        # Snakemake's MB are a million bytes.
        round(memory * 1e6) + _OF_SNAKEMAKE_BYTES if _is_number(memory) else 0,
        max(gpus) if gpus else 0,
        round(minutes * 60e3) if _is_number(minutes) and minutes > 0 else None,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table(needs: Tuple[Any, ...], rows: List[Tuple[str, str]], keeps_files: bool) -> Dict[str, Any]:
    """Tasks of the same needs."""
    cpus, memory, gpus, timeout = needs
    return {
        "name": "{name}",
        "command": ["bash", "-c", "{script}"],
        "params": {"rows": {"columns": ["name", "script"], "rows": rows}},
        "resources": {"cpus": cpus, "memory_bytes": memory, "gpus": gpus},
        "timeout_ms": timeout,
        "outputs": [files.ARCHIVE] if keeps_files else [],
    }
