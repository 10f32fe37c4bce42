"""What a notebook shows of pools and jobs, and what `%%nodectl` promises: in IPython's own shell, with a frontend that records."""

import html.parser
import threading
import time

import nodectl
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell


class Frontend(CapturingDisplayPublisher):
    """What is shown last in each place."""

    def texts(self):
        places = {}
        for number, output in enumerate(list(self.outputs)):
            shown = output["data"].get("text/html")
            if shown is not None:
                places[(output.get("transient") or {}).get("display_id", number)] = shown
        return list(places.values())


@pytest.fixture
def shell():
    shell = InteractiveShell.instance()
    shell.display_pub = Frontend(shell=shell)
    # As in a notebook, where what is shown has a place that can change.
    shell.kernel = object()
    shell.run_line_magic("load_ext", "nodectl")
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell, okay=True):
    result = shell.run_cell(cell)
    if okay:
        result.raise_error()
    return result


def wait_until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Slow:
    gate = None

    def run(self, path):
        import os

        while not os.path.exists(path):
            time.sleep(0.02)
        return 1


def test_a_pool_shows_its_workers_and_tasks_while_they_run(shell, tmp_path):
    gate = tmp_path / "gate"
    with nodectl.Pool(Slow, cpus=0.5, max_workers=2) as pool:
        futures = [pool.submit(str(gate)) for _ in range(4)]
        shell.user_ns["pool"] = pool
        run(shell, "pool")
        wait_until(lambda: any("2 workers on 1 node" in text for text in shell.display_pub.texts()), "the workers are shown")
        (shown,) = shell.display_pub.texts()
        assert pool.job in shown and "0 of 4 tasks done" in shown
        gate.write_text("")
        assert [future.result() for future in futures] == [1] * 4
        wait_until(lambda: "4 of 4 tasks done" in shell.display_pub.texts()[0], "it goes on in its place")
    wait_until(lambda: "closed" in shell.display_pub.texts()[0], "its end is shown")
    assert len(shell.display_pub.texts()) == 1
    assert "closed" in repr(pool)
    watching = [thread for thread in threading.enumerate() if thread.name == "nodectl-display"]
    for thread in watching:
        thread.join(30)
        assert not thread.is_alive()


def test_a_cell_runs_as_a_job_with_what_it_is_given_and_gives_back(shell, capsys):
    run(shell, "import collections\nPair = collections.namedtuple('Pair', 'a b')\nfactor, before = 3, [Pair(1, 2)]")
    cell = "%%nodectl --name tripled -i factor,before -o tripled,where --cpus 0.5\n"
    cell += "import os, sys\nprint('hello from a cell')\nprint('and to stderr', file=sys.stderr)\n"
    cell += "tripled = [factor * pair.b for pair in before]\nwhere = os.getcwd()"
    run(shell, cell)
    assert shell.user_ns["tripled"] == [6]
    assert shell.user_ns["where"] != __import__("os").getcwd()
    said = capsys.readouterr()
    assert "hello from a cell\n" in said.out and "and to stderr\n" in said.err
    job = nodectl.Job("tripled")
    assert (job.name, job.phase, job.wait()) == ("tripled", "done", "done")


def test_a_cell_that_fails_says_why_and_where(shell, capsys):
    before = dict(shell.user_ns)
    failed = run(shell, "%%nodectl -o x\nx = 1\nraise KeyError('no such thing')", okay=False)
    assert isinstance(failed.error_in_exec, nodectl.PoolError)
    said = capsys.readouterr().err
    assert "KeyError: 'no such thing'" in said and "raise KeyError" in said
    assert "x" not in shell.user_ns or shell.user_ns["x"] == before.get("x")
    missing = run(shell, "%%nodectl -o never\npass", okay=False)
    assert isinstance(missing.error_in_exec, nodectl.PoolError)
    assert "the cell defines no never" in capsys.readouterr().err
    unknown = run(shell, "%%nodectl -i nothing_such\npass", okay=False)
    assert isinstance(unknown.error_in_exec, NameError)


def test_a_detached_cell_is_a_job_that_shows_itself(shell, tmp_path):
    gate = tmp_path / "gate"
    cell = "%%%%nodectl --detach --name later\nimport os, time\nwhile not os.path.exists(%r):\n    time.sleep(0.02)" % str(gate)
    job = run(shell, cell).result
    wait_until(lambda: any("later" in text and "0 of 1 task done" in text for text in shell.display_pub.texts()), "it is shown")
    assert not job.is_ended()
    gate.write_text("")
    assert job.wait(60) == "done"
    wait_until(lambda: any("1 of 1 task done" in text for text in shell.display_pub.texts()), "its end is shown")
    assert [result["status"] for result in job.results()] == ["done"]


def test_a_job_is_cancelled_and_unknown_ones_are_refused(shell):
    job = run(shell, "%%nodectl --detach --name endless\nimport time\ntime.sleep(600)").result
    job.cancel()
    assert job.wait(60) == "cancelled"
    with pytest.raises(nodectl.NodeError):
        nodectl.Job("nobody-named-a-job-so")


def test_names_are_text_in_what_is_shown(shell):
    from nodectl import notebook

    class Tags(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag in ("div", "b", "i", "span"), tag

    shown = notebook.html("<img src=x onerror=alert(1)>", "<script>", [("done", 1)], 2, ['"><svg onload=alert(1)>'])
    Tags().feed(shown)
    assert "<img" not in shown and "<script" not in shown and "<svg" not in shown
