"""`Job`: a job of the cluster, whoever submitted it, to be looked at and waited for; in a notebook it shows itself."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterator, List, Optional
from urllib.parse import quote

from . import _node
from ._errors import NodeError
from ._sizes import counted

# How long one request waits for results, in ms; and how many it asks for.
_WAIT_MS = 2000
_PAGE = 512
_ENDED = ("done", "failed", "cancelled")
# How long a job whose coordinator died, or whose node leaves, is asked for again.
_PATIENCE_SECONDS = 60.0


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

    def _get(self, target: str) -> Any:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return _node.request(self._path, "GET", target)
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
