"""Jobs of commands that this package submits for libraries: where the node is, submitting once, results as tasks end."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _node
from ._errors import NodeError

# How long a node that goes away may take to come back.
_AWAY_SECONDS = 30.0
_ENDED = ("done", "failed", "cancelled")


def open_node() -> Tuple[str, bool]:
    """The socket of this machine's node, and whether that works alone. One is started that ends with this program if there is none.
    Fails with NodeError if none can be."""
    local = _node.LocalNode(None, None, None)
    local.make_run()
    return local.path, bool(again(lambda: _node.request(local.path, "GET", "/v1/node")).get("solo"))


def again(ask: Callable[[], Any], revive: Optional[Callable[[], None]] = None) -> Any:
    """Asks a node that may be away for a moment. `revive` has it answer again. Fails with NodeError if it stays away."""
    deadline = time.monotonic() + _AWAY_SECONDS
    while True:
        try:
            return ask()
        except OSError as error:
            if time.monotonic() > deadline:
                raise NodeError("the node is gone: %s" % error) from None
            if revive is not None:
                revive()
            time.sleep(0.2)


def literal(text: str) -> str:
    """A text for commands and variables of a job, where braces are around names of parameters."""
    return text.replace("{", "{{").replace("}", "}}")


def word(function: Any) -> str:
    """What the tasks of a function are called by; or of whatever else has this name."""
    name = function if isinstance(function, str) else str(getattr(function, "__name__", type(function).__name__))
    word = "".join(c if c.isalnum() and c.isascii() else "-" for c in name)[:40].strip("-")
    return word or "call"


def submit(node: str, request: Dict[str, Any], key: Optional[str] = None) -> str:
    """The id of a new job, of the API's `JobRequest`. It is one job, however often it has to be asked for; with a key of its user's, by
    whatever program."""
    _node.wait_for_gpus()
    body = json.dumps({**request, "key": key or uuid.uuid4().hex}).encode()
    asked = itertools.count()

    def ask() -> Any:
        return _node.request(node, "POST", "/v1/jobs", body, kind="application/json", asked_before=next(asked))

    return str(again(ask)["job"])


def cancel(node: str, job: str, tasks: Sequence[int] = ()) -> None:
    """Stops what is unfinished of a job, or some of its tasks."""
    body = json.dumps({"tasks": list(tasks)}).encode() if tasks else b""
    again(lambda: _node.request(node, "POST", "/v1/jobs/%s/cancel" % job, body, kind="application/json"))


def log(node: str, job: str, result: Dict[str, Any], stream: str) -> bytes:
    """All that a task wrote."""
    if result[stream]["complete"]:
        return str(result[stream]["tail"]).encode()
    target = "/v1/jobs/%s/tasks/%d/log?stream=%s" % (job, result["task"], stream)
    return b"".join(again(lambda: list(_node.pieces(node, target))))


def blob(node: str, name: str, holder: Optional[str], kept: bool = False) -> bytes:
    """A file that a task left on a node, or the result of a call, which is `kept` there. Fails with NodeError if no node has it."""
    return b"".join(again(lambda: list(_node.pieces(node, blob_target(name, holder, kept)))))


def blob_target(name: str, holder: Optional[str], kept: bool = False) -> str:
    """Where the API has a file; a node that has it, if one is known, is asked before the others."""
    arguments = ["from=" + holder] if holder else []
    if kept:
        arguments.append("kept=true")
    return "/v1/blobs/%s%s" % (name, "?" + "&".join(arguments) if arguments else "")


def failure(result: Dict[str, Any]) -> str:
    """Why a task failed, and the end of what it said."""
    why = result["failure"]["message"] if result.get("failure") else result["status"]
    said = result["stderr"]["tail"].strip()
    return "%s: %s%s" % (result["name"], why, "\n" + said if said else "")


class Results:
    """The results of a job, page by page."""

    def __init__(self, node: str, job: str) -> None:
        self.node = node
        self.job = job
        #: Whether there is nothing more to come.
        self.is_over = False
        self.phase = "waiting"
        self._claim, self._position = 0, 0

    def page(self, wait_ms: int = 0) -> List[Dict[str, Any]]:
        """What has ended since the page before: all again after another node has taken the job over."""
        target = "/v1/jobs/%s/results?claim=%d&position=%d&wait_ms=%d" % (self.job, self._claim, self._position, wait_ms)
        page = again(lambda: _node.request(self.node, "GET", target))
        self._claim, self._position = page["cursor"]["claim"], page["cursor"]["position"]
        self.phase = page["progress"]["phase"]
        found: List[Dict[str, Any]] = page["results"]
        self.is_over = not found and self.phase in _ENDED
        return found
