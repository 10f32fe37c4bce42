"""Notebooks: how pools and jobs show themselves, and `%%nodectl`, which runs a cell as a job. `%load_ext nodectl` loads it."""

from __future__ import annotations

import argparse
import html as _html
import os
import pickle
import shlex
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _jobs, _node
from ._errors import NodeError, PoolError
from ._sizes import size
from ._upload import upload
from .job import Job

# How often what is shown is made anew.
_LOOK_SECONDS = 1.0
_COLOURS = {"done": "#2f7f6f", "failed": "#c0392b", "stopped": "#9aa3af", "running": "#3b82c4"}
_RESULT_FILE = "nodectl-cell.pickle"

# Runs a cell on a node. What it defines and is asked for comes back; what fails is told as in a notebook.
_RUNNER = """
import pickle, sys
import cloudpickle
with open("inputs.pickle", "rb") as file:
    given, wanted = pickle.load(file)
with open("cell.py", encoding="utf-8") as file:
    source = file.read()
scope = sys.modules["__main__"].__dict__
scope.update(given)
exec(compile(source, "cell.py", "exec"), scope)
missing = [name for name in wanted if name not in scope]
if missing:
    sys.exit("the cell defines no " + ", ".join(missing))
with open("%s", "wb") as file:
    cloudpickle.dump({name: scope[name] for name in wanted}, file)
""" % _RESULT_FILE


def html(title: str, state: str, parts: Sequence[Tuple[str, int]], whole: int, lines: Sequence[str]) -> str:
    """A title, a bar of parts of a whole, and lines of text, as HTML. Whatever names and texts hold is text."""
    bar = "".join(
        '<i style="display:block;height:100%%;width:%.2f%%;background:%s"></i>' % (100.0 * part / max(whole, 1), _COLOURS.get(kind, "#9aa3af"))
        for kind, part in parts
        if part
    )
    return (
        '<div style="font:14px/1.5 system-ui,sans-serif;max-width:640px">'
        "<b>%s</b> &middot; %s"
        '<div role="img" aria-label="%s" style="display:flex;height:7px;border-radius:4px;overflow:hidden;background:rgb(128 128 128 / 25%%);margin:4px 0">%s</div>'
        '<span style="opacity:.75">%s</span></div>'
    ) % (_html.escape(title), _html.escape(state), _html.escape(", ".join(lines)), bar, _html.escape(" · ".join(lines)))


def show(thing: Any, is_ended: Callable[[], bool]) -> None:
    """Displays a pool or a job; in a notebook again and again until it has ended."""
    import IPython
    import IPython.display

    if getattr(IPython.get_ipython(), "kernel", None) is None:
        # A terminal has no place that could change.
        print(repr(thing))
        return
    # Its functions have no types.
    ipython: Any = IPython.display
    shown = thing._repr_html_()
    handle = ipython.display({"text/html": shown}, raw=True, display_id=True)
    if is_ended():
        return
    watcher = threading.Thread(target=_watch, args=(thing, is_ended, handle, shown), name="nodectl-display", daemon=True)
    watcher.start()


def _watch(thing: Any, is_ended: Callable[[], bool], handle: Any, shown: str) -> None:
    pause, last = threading.Event(), False
    while not last:
        pause.wait(_LOOK_SECONDS)
        try:
            last = is_ended()
            now = thing._repr_html_()
        except (NodeError, PoolError, OSError):
            # It has gone with its node: what was shown last stays.
            return
        if now != shown:
            handle.update({"text/html": now}, raw=True)
            shown = now


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="%%nodectl", description="Runs the cell as a job, on whichever node has room.")
    parser.add_argument("-i", "--inputs", default="", metavar="NAMES", help="variables that the cell gets, separated by commas")
    parser.add_argument("-o", "--outputs", default="", metavar="NAMES", help="variables that come back")
    parser.add_argument("--name", default="cell", help="the job's name in listings")
    parser.add_argument("--cpus", type=float, help="cores (default: 1)")
    parser.add_argument("--gpus", type=float, help="GPUs, such as 1 or 0.25")
    parser.add_argument("--memory", type=size, metavar="SIZE", help="memory that is kept free for it, such as 2GiB")
    parser.add_argument("--where", default="", metavar="EXPR", help='which nodes may run it, such as "gpu.memory >= 8 GiB"')
    parser.add_argument("--python", help="the interpreter on the nodes (default: as for pools)")
    parser.add_argument("--source", action="append", default=[], metavar="PATH", help="a file or directory that travels along")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="after which it is ended")
    parser.add_argument("--retries", type=int, default=0, help="how often it is tried again when it fails")
    parser.add_argument("--detach", action="store_true", help="do not wait: the job is the cell's result")
    return parser


def _names(text: str) -> List[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not name.isidentifier():
            raise ValueError("`%s` is no name of a variable" % name)
    return names


def submit(cell: str, arguments: argparse.Namespace, variables: Dict[str, Any]) -> Job:
    """Submits a cell as a job of one task."""
    import cloudpickle

    inputs, outputs = _names(arguments.inputs), _names(arguments.outputs)
    unknown = [name for name in inputs if name not in variables]
    if unknown:
        raise NameError("there is no variable %s to give to the cell" % ", ".join(unknown))
    node = _node.LocalNode(None, None, None)
    node.make_run()
    given = cloudpickle.dumps(({name: variables[name] for name in inputs}, outputs))
    made = {"cell.py": cell.encode(), "inputs.pickle": given, "run.py": _RUNNER.encode()}
    # Nodes need not have it.
    paths = [os.path.dirname(cloudpickle.__file__), *arguments.source]
    works_alone = bool(_node.request(node.path, "GET", "/v1/node").get("solo"))
    resources = {"cpus": arguments.cpus, "gpus": arguments.gpus, "memory_bytes": arguments.memory}
    job: Dict[str, Any] = {
        "name": arguments.name,
        "command": [arguments.python or _node.default_python(works_alone), "-u", "run.py"],
        "inputs": upload(node.path, paths, made),
        "where": arguments.where,
        "retries": arguments.retries,
        "outputs": [_RESULT_FILE],
    }
    wanted = {key: value for key, value in resources.items() if value is not None}
    if wanted:
        job["resources"] = wanted
    if arguments.timeout is not None:
        job["timeout_ms"] = max(1, round(arguments.timeout * 1e3))
    return Job(_jobs.submit(node.path, job))


def finish(job: Job) -> Dict[str, Any]:
    """Prints what the cell writes, as it writes it, and gives the variables that come back. Fails with PoolError if it failed."""
    errors = threading.Thread(target=_copy, args=(job, "stderr", sys.stderr), name="nodectl-cell", daemon=True)
    errors.start()
    _copy(job, "stdout", sys.stdout)
    errors.join()
    result = next(job.results(), None)
    if result is None or result["status"] != "done":
        failure = (result or {}).get("failure") or {}
        why = failure.get("message") or job.status().get("reason") or job.phase
        raise PoolError("the cell failed as job %s: %s" % (job.id, why))
    output = next((one for one in result["outputs"] if one["path"] == _RESULT_FILE), None)
    if output is None:
        return {}
    values: Dict[str, Any] = pickle.loads(job.blob(output))
    return values


def _copy(job: Job, stream: str, to: Any) -> None:
    for piece in job.log(0, stream, follow=True):
        to.write(piece.decode(errors="replace"))
        to.flush()


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext nodectl` does: `%%nodectl` runs a cell as a job (`%%nodectl --help`)."""

    def nodectl(line: str, cell: str) -> Optional[Job]:
        try:
            arguments = _parser().parse_args(shlex.split(line))
        except SystemExit:
            # What was wrong, or the help, is printed.
            return None
        job = submit(cell, arguments, shell.user_ns)
        if arguments.detach:
            return job
        try:
            shell.user_ns.update(finish(job))
        except KeyboardInterrupt:
            job.cancel()
            raise
        return None

    shell.register_magic_function(nodectl, "cell", "nodectl")
