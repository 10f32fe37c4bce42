"""`Job`: a job of the cluster, whoever submitted it, to be looked at and waited for; in a notebook it shows itself."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence
from urllib.parse import quote

from . import _jobs, _node
from ._errors import NodeError
from ._sizes import counted

# How long one request waits for results, in ms; and how many it asks for.
_WAIT_MS = 2000
_PAGE = 512
# Rows that are added in one request.
_ROWS = 1000
_ENDED = ("done", "failed", "cancelled")
# How long a job whose coordinator died, or whose node leaves, is asked for again.
_PATIENCE_SECONDS = 60.0


def submit(command: Sequence[str], name: str = "job", open: Sequence[str] = (), key: Optional[str] = None, **more: Any) -> "Job":
    """A new job that runs a command, which nodes have, on the cluster that this machine is a node of.

    :param command: The program and its arguments; `{name}` stands for a parameter.
    :param open: The job is open: tasks are added with `Job.extend`, each of which gives the parameters of these names, until `Job.close`.
    :param key: Submitted again with the same key it is the same job.
    :param more: Other keys of the API's `JobRequest`, such as `params`, `retries`, `env` and `resources`; with
        `wait_for_nodes` it waits for a node that can run it, if none can.
    :raises NodeError: There is no node here, or it refuses the job.
    """
    path = _node.socket_path()
    request = {"name": name, "command": list(command), **more}
    if open:
        request["open"] = list(open)
    try:
        _node.request(path, "GET", "/v1/node")
    except OSError as error:
        raise NodeError("no node answers at %s: %s\nhint: `nodectl join` makes this machine one" % (path, error)) from None
    return Job(_jobs.submit(path, request, key))


class Job:
    """A job that the node of this machine knows.

    :param reference: Its id, the beginning of it, or its name (the newest of that name); the newest job if missing.
    :raises NodeError: There is no node here, or no such job.
    """

    def __init__(self, reference: str = "last") -> None:
        self._path = _node.socket_path()
        self.id: str = self._get("/v1/jobs/%s" % quote(reference, safe=""))["id"]

    def status(self) -> Dict[str, Any]:
        """All about it, as `GET /v1/jobs/{job}` has it: name, phase, tasks, done, failed, progress, work."""
        status: Dict[str, Any] = self._get("/v1/jobs/%s" % self.id)
        return status

    @property
    def name(self) -> str:
        return str(self.status()["name"])

    @property
    def phase(self) -> str:
        """`waiting`, `running`, `done`, `failed` or `cancelled`."""
        return str(self.status()["phase"])

    def is_ended(self) -> bool:
        return self.phase in _ENDED

    def results(self) -> Iterator[Dict[str, Any]]:
        """The results as tasks end, until the job has ended: dictionaries with task, params, status, value, failure, outputs …"""
        seen = set()
        cursor = {"claim": 0, "position": 0}
        while True:
            target = "/v1/jobs/%s/results?claim=%d&position=%d&wait_ms=%d&limit=%d"
            page = self._get(target % (self.id, cursor["claim"], cursor["position"], _WAIT_MS, _PAGE))
            cursor = page["cursor"]
            for result in page["results"]:
                # After a takeover they come anew.
                if result["task"] not in seen:
                    seen.add(result["task"])
                    yield result
            if not page["results"] and page["progress"]["phase"] in _ENDED:
                return

    def wait(self, timeout: Optional[float] = None) -> str:
        """The phase that it ended in; that it is in after `timeout` seconds, if it has not ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.02
        while True:
            phase = self.phase
            if phase in _ENDED or (deadline is not None and time.monotonic() >= deadline):
                return phase
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def log(self, task: int = 0, stream: str = "stdout", follow: bool = False) -> Iterator[bytes]:
        """What a task wrote, in pieces; with `follow` until it has ended."""
        target = "/v1/jobs/%s/tasks/%d/log?stream=%s&follow=%s" % (self.id, task, stream, "true" if follow else "false")
        return _node.pieces(self._path, target)

    def blob(self, output: Dict[str, Any]) -> bytes:
        """A file that a task left: one of the `outputs` of a result."""
        return b"".join(_node.pieces(self._path, "/v1/blobs/%s" % output["hash"]))

    def cancel(self) -> None:
        """Stops what is unfinished of it."""
        _node.request(self._path, "POST", "/v1/jobs/%s/cancel" % self.id)

    def extend(self, rows: Iterable[Mapping[str, Any]], key: Optional[str] = None) -> List[int]:
        """Adds tasks to a job that is open; returns their numbers, when all of them count.

        :param rows: The parameters of each task: numbers, truth values and texts by name.
        :param key: A name for these rows: added again under it, in the same order, they are the same tasks.
        :raises NodeError: The job is not open, or is closed, or has other parameters.
        """
        key = key or uuid.uuid4().hex
        given = [dict(row) for row in rows]
        columns = list(given[0]) if given else []
        if any(set(row) != set(columns) for row in given):
            raise ValueError("all rows give the same parameters")
        tasks: List[int] = []
        for first in range(0, len(given), _ROWS):
            part = [[row[column] for column in columns] for row in given[first : first + _ROWS]]
            body = json.dumps({"key": "%s/%d" % (key, first), "columns": columns, "rows": part}, allow_nan=False).encode()
            tasks += self._post("tasks", body)["tasks"]
        return tasks

    def close(self) -> None:
        """Ends a job that is open, once all its tasks have ended: no more can be added.

        :raises NodeError: The job is not open.
        """
        self._post("close", b"")

    def _post(self, what: str, body: bytes) -> Any:
        target = "/v1/jobs/%s/%s" % (self.id, what)
        return self._patiently(lambda: _node.request(self._path, "POST", target, body, kind="application/json"))

    def _get(self, target: str) -> Any:
        return self._patiently(lambda: _node.request(self._path, "GET", target))

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return ask()
            except ConnectionAbortedError:
                # Nobody coordinates it for a moment, or the node leaves.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            except OSError as error:
                if isinstance(error, ConnectionResetError) and time.monotonic() < deadline:
                    time.sleep(0.2)
                    continue
                raise NodeError("no node answers at %s: %s\nhint: `nodectl join` makes this machine one" % (self._path, error)) from None

    def __repr__(self) -> str:
        return "<Job %s>" % self.id

    def _rows(self) -> List[Any]:
        """What is shown of it: title, state, parts of a whole, and lines of text."""
        status = self.status()
        progress = status["progress"]
        running = 0 if status["phase"] in _ENDED else progress["running"]
        parts = [("done", status["done"]), ("failed", status["failed"]), ("stopped", status["stopped"]), ("running", running)]
        lines = ["%d of %s done" % (status["done"], counted(status["tasks"], "task"))]
        lines += ["%d %s" % (count, word) for word, count in parts[1:] if count]
        if status["phase"] not in _ENDED:
            if progress.get("left_seconds") is not None:
                lines.append("about %d s left" % progress["left_seconds"])
            if progress.get("waiting_for"):
                lines.append("waits for %s" % progress["waiting_for"])
        if status.get("reason"):
            lines.append(status["reason"])
        return ["%s (%s)" % (status["name"], self.id), status["phase"], parts, status["tasks"], lines]

    def _repr_html_(self) -> str:
        from . import notebook

        return notebook.html(*self._rows())

    def _ipython_display_(self) -> None:
        from . import notebook

        notebook.show(self, self.is_ended)
