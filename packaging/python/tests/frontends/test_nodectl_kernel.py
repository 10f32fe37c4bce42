"""Cells, pools and jobs in a real kernel, as a notebook hears of them: by Jupyter's messages."""

import queue
import time

import pytest
from jupyter_client.manager import start_new_kernel

SECONDS = 60


class Notebook:
    """A frontend: what stands below its cells."""

    def __init__(self, client):
        self.client = client
        # What a place shows now, and how often that has changed.
        self.places, self.changes = {}, {}
        self.streams = {"stdout": "", "stderr": ""}

    def take(self, message):
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.streams[content["name"]] += content["text"]
        elif kind in ("display_data", "update_display_data"):
            place = content.get("transient", {}).get("display_id", message["header"]["msg_id"])
            assert kind == "display_data" or place in self.places, "what is not there cannot change"
            self.places[place] = content["data"].get("text/html", "")
            self.changes[place] = self.changes.get(place, 0) + 1

    def run(self, cell):
        """Runs a cell to its end; the reply's content."""
        asked = self.client.execute(cell)
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            self.take(message)
            is_ours = message["parent_header"].get("msg_id") == asked
            if is_ours and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == asked:
                return reply["content"]

    def wait_until_shown(self, *words):
        """Listens until some place shows all of these."""
        deadline = time.monotonic() + SECONDS
        while True:
            for place, shown in self.places.items():
                if all(word in shown for word in words):
                    return place
            assert time.monotonic() < deadline, (words, self.places)
            try:
                self.take(self.client.get_iopub_msg(timeout=1))
            except queue.Empty:
                pass


@pytest.fixture
def notebook(tmp_path):
    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        notebook = Notebook(client)
        assert notebook.run("%load_ext nodectl")["status"] == "ok"
        yield notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_runs_on_a_node_and_its_results_are_the_notebooks(notebook):
    assert notebook.run("factor = 3")["status"] == "ok"
    done = notebook.run("%%nodectl -i factor -o tripled --cpus 0.5\nprint('hello from a node')\ntripled = [factor * each for each in (1, 2)]")
    assert done["status"] == "ok", done
    assert notebook.run("print(tripled)")["status"] == "ok"
    assert "hello from a node\n" in notebook.streams["stdout"] and "[3, 6]\n" in notebook.streams["stdout"]
    failed = notebook.run("%%nodectl --cpus 0.5\nraise KeyError('no such thing')")
    assert (failed["status"], failed["ename"]) == ("error", "PoolError")
    assert "KeyError: 'no such thing'" in notebook.streams["stderr"]


def test_a_job_shows_itself_and_goes_on_in_its_place(notebook, tmp_path):
    gate = tmp_path / "gate"
    cell = "%%%%nodectl --detach --name later --cpus 0.5\nimport os, time\nwhile not os.path.exists(%r):\n    time.sleep(0.02)" % str(gate)
    assert notebook.run(cell)["status"] == "ok"
    place = notebook.wait_until_shown("later", "0 of 1 task done")
    gate.write_text("")
    assert notebook.wait_until_shown("later", "1 of 1 task done") == place
    assert notebook.changes[place] > 1 and len(notebook.places) == 1


def test_a_pool_shows_its_tasks_while_they_run(notebook, tmp_path):
    gate = tmp_path / "gate"
    opened = """
import nodectl
class Slow:
    def run(self, path):
        import os, time
        while not os.path.exists(path):
            time.sleep(0.02)
        return 1
pool = nodectl.Pool(Slow, cpus=0.5, max_workers=2)
futures = [pool.submit(%r) for _ in range(4)]
pool
"""
    done = notebook.run(opened % str(gate))
    assert done["status"] == "ok", done
    place = notebook.wait_until_shown("0 of 4 tasks done")
    gate.write_text("")
    assert notebook.wait_until_shown("4 of 4 tasks done") == place
    closed = notebook.run("print(sum(future.result() for future in futures)); pool.close()")
    assert closed["status"] == "ok", closed
    assert notebook.streams["stdout"].endswith("4\n")
    assert notebook.wait_until_shown("closed") == place
