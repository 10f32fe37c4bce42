"""The executor plugin of Snakemake: Snakemake's own tests of plugins, with and without a shared file system, and what they do not ask."""

import signal
import subprocess
import sys
import time
import types

import pytest
import snakemake.common.tests
from nodectl import _jobs, _node
from snakemake_executor_plugin_nodectl import ExecutorSettings, _needs


class TestOnSharedFiles(snakemake.common.tests.TestWorkflowsLocalStorageBase):
    __test__ = True
    latency_wait = 1

    def get_executor(self):
        return "nodectl"

    def get_executor_settings(self):
        return ExecutorSettings()


class TestWithoutSharedFiles(TestOnSharedFiles):
    def get_assume_shared_fs(self):
        return False


def test_the_plugin_needs_nothing_but_snakemake():
    # Snakemake imports all plugins that it finds, whichever is used.
    program = "import sys; sys.modules['cloudpickle'] = None; import snakemake_executor_plugin_nodectl"
    subprocess.run([sys.executable, "-c", program], check=True)


def start(directory, snakefile, *arguments):
    (directory / "Snakefile").write_text(snakefile)
    line = [sys.executable, "-m", "snakemake", "--executor", "nodectl", "--jobs", "20", "--latency-wait", "1", *arguments]
    return subprocess.Popen(line, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(directory, snakefile, *arguments):
    process = start(directory, snakefile, *arguments)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def newest_job():
    return _node.request(_node.socket_path(), "GET", "/v1/jobs/last")


def logs(directory):
    return {path.parent.name: path.read_text() for path in (directory / ".snakemake/nodectl").glob("*/*.log")}


@pytest.mark.parametrize(
    "threads, resources, needs",
    [
        (2, {"mem_mb": 300, "runtime": 7, "gpu": 1}, (2, 600_000_000, 1, 420_000)),
        (0, {"mem_mb": "TBD", "nvidia_gpu": 2, "tmpdir": "/tmp"}, (1, 0, 2, None)),
    ],
)
def test_a_tasks_needs_are_those_of_the_rule(threads, resources, needs):
    # With what Snakemake's own process takes.
    assert _needs(types.SimpleNamespace(threads=threads, resources=resources)) == needs


NEEDS = """
envvars: "SAID"

rule all:
    threads: 2
    output: "out"
    resources: mem_mb=300, runtime=7, gpu=0
    shell: "echo {threads} $SAID > {output}"
"""


def test_a_rule_has_its_threads_and_the_variables_of_the_workflow(tmp_path, monkeypatch):
    monkeypatch.setenv("SAID", "a {brace}")
    status, said = run(tmp_path, NEEDS)
    assert status == 0, said
    assert (tmp_path / "out").read_text() == "2 a {brace}\n"


FAILS = """
rule bad:
    output: "out"
    shell: "echo a word of the rule >&2; exit 3"
"""


def test_a_rule_that_fails_is_named_with_a_log_that_has_its_words(tmp_path):
    status, said = run(tmp_path, FAILS)
    assert status == 1
    assert "Error in rule bad" in said and ".snakemake/nodectl/bad/" in said, said
    assert "a word of the rule" in logs(tmp_path)["bad"]


GROUP = """
rule all:
    input: "left", "right"

rule half:
    output: "{side}"
    group: "halves"
    threads: 600
    shell: "echo {wildcards.side} > {output}"
"""


def test_a_group_that_no_node_has_room_for_is_told_so(tmp_path):
    status, said = run(tmp_path, GROUP, "--group-components", "halves=2")
    # The cores of rules that can run side by side add up.
    assert status == 1 and "Error in group halves: the job can never run: " in said and "needs 1200 cores" in said, said


UNSTEADY = """
rule unsteady:
    output: "out"
    retries: 2
    shell: "echo x >> {tries}; [ $(wc -l < {tries}) = 2 ] && touch {{output}}"
"""


def test_attempts_are_counted_by_snakemake(tmp_path):
    tries = tmp_path / "tries"
    status, said = run(tmp_path, UNSTEADY.format(tries=tries))
    assert status == 0, said
    assert tries.read_text() == "x\nx\n"


SLOW = """
rule slow:
    output: "out"
    shell: "touch {began}; sleep 300; touch {{output}}"
"""


def test_a_workflow_that_is_interrupted_leaves_nothing_running(tmp_path):
    began = tmp_path / "began"
    process = start(tmp_path, SLOW.format(began=began))
    while not began.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0, said
    assert newest_job()["phase"] == "cancelled"


def test_a_job_that_somebody_else_cancels_fails(tmp_path):
    began = tmp_path / "began"
    process = start(tmp_path, SLOW.format(began=began))
    while not began.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    _jobs.cancel(_node.socket_path(), newest_job()["id"])
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "cancelled" in said, said


TEN = """
rule all:
    input: "total.txt"

rule part:
    output: "part/{k}.txt"
    shell: "echo {wildcards.k} > {output}"

rule total:
    input: expand("part/{k}.txt", k=range(9))
    output: "total.txt"
    shell: "cat {input} | paste -sd+ | bc > {output} || python -c 'import sys; print(36)' > {output}"
"""


@pytest.mark.parametrize("shared", [[], ["--shared-fs-usage", "none"]], ids=["shared", "not shared"])
def test_rules_that_are_ready_together_are_one_job(tmp_path, shared):
    status, said = run(tmp_path, TEN, *shared)
    assert status == 0, said
    assert (tmp_path / "total.txt").read_text() == "36\n"


OUTSIDE = """
rule outside:
    input: "{path}"
    output: "out"
    shell: "cp {{input}} {{output}}"
"""


def test_a_file_that_cannot_travel_is_named(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("x")
    below = tmp_path / "below"
    below.mkdir()
    status, said = run(below, OUTSIDE.format(path=outside), "--shared-fs-usage", "none")
    assert status == 1 and "outside of the workflow's directory" in said, said
