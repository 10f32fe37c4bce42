"""The executor of submitit, beyond its own tests."""

import os
import pickle
import time

import pytest
import submitit
import submitit.core.plugins
from nodectl.submitit import NodectlExecutor
from submitit.core import utils


def executor(folder, **parameters):
    made = submitit.AutoExecutor(folder, cluster="nodectl")
    made.update_parameters(timeout_min=2, **parameters)
    return made


def where():
    env = submitit.JobEnvironment()
    return env.job_id, env.global_rank, env.num_tasks, os.getcwd()


def test_nodectl_is_taken_where_a_node_runs(tmp_path):
    executors = submitit.core.plugins.get_executors()
    # SLURM's goes first where it is installed, too.
    assert executors["nodectl"].affinity() == executors["slurm"].affinity() or submitit.AutoExecutor(tmp_path).cluster == "nodectl"


def test_an_array_is_one_job_of_as_many_tasks(tmp_path):
    jobs = executor(tmp_path / "%j", cpus_per_task=1).map_array(pow, [2, 3, 4], [2, 2, 2])
    assert [job.result() for job in jobs] == [4, 9, 16]
    first = jobs[0].job_id.partition("_")[0]
    assert [job.job_id for job in jobs] == ["%s_%d" % (first, task) for task in range(3)]
    # A result is there before its process has ended.
    deadline = time.monotonic() + 60
    while {job.state for job in jobs} != {"COMPLETED"}:
        assert time.monotonic() < deadline, [job.state for job in jobs]
        time.sleep(0.05)


def test_a_job_knows_what_it_is_and_runs_where_it_was_submitted(tmp_path):
    job = executor(tmp_path).submit(where)
    assert job.result() == (job.job_id, 0, 1, os.getcwd())
    job = executor(tmp_path / "{braces}", nodectl_setup=["export SAID=${NOTHING:-yes}"]).submit(os.getenv, "SAID")
    assert pickle.loads(pickle.dumps(job)).result() == "yes"


def test_processes_of_a_job_have_ranks(tmp_path):
    job = executor(tmp_path, nodes=1, tasks_per_node=2).submit(where)
    assert [result[:3] for result in job.results()] == [(job.job_id, rank, 2) for rank in range(2)]


def fail_but_for_the_first():
    rank = submitit.JobEnvironment().global_rank
    if rank > 0:
        raise RuntimeError("rank %d failed" % rank)


def test_a_job_tells_of_a_process_that_failed(tmp_path):
    error = executor(tmp_path, nodes=1, tasks_per_node=3).submit(fail_but_for_the_first).exception()
    assert isinstance(error, utils.FailedJobError), error
    assert " failed" in error.args[0]


class Slow:
    """Has more time than its job, until it begins again from its checkpoint."""

    def __call__(self, seconds):
        time.sleep(seconds)
        return "slept for %d s" % seconds

    def checkpoint(self, seconds):
        return utils.DelayedSubmission(self, 0)


def test_a_job_whose_time_is_nearly_over_goes_on_from_its_checkpoint(tmp_path):
    made = NodectlExecutor(tmp_path, max_num_timeout=1)
    # It is told after 12 s.
    made.update_parameters(timeout_min=20 / 60, signal_delay_s=8)
    job = made.submit(Slow(), 300)
    assert job.result() == "slept for 0 s"
    assert "(0 remaining timeouts)" in job.stdout()


def test_a_job_is_cancelled(tmp_path):
    job = executor(tmp_path).submit(time.sleep, 300)
    job.cancel()
    with pytest.raises(utils.UncompletedJobError):
        job._results_timeout_s = 0
        job.result()
    assert job.state == "CANCELLED"


def test_what_no_executor_knows_is_refused(tmp_path):
    with pytest.raises(NameError, match="where"):
        executor(tmp_path, nodectl_wher="gpus > 0")
