"""Graphs of calls that need each other's results, as one job of the cluster.

    import nodectl

    graph = nodectl.Graph()
    parts = [graph.call(pow, k, 2) for k in range(10)]
    total = graph.call(sum, parts)
    print(graph.run(total))

A call runs as soon as what it needs is done, each in a process of its own on whichever node has room. Results travel from node to
node; only those that are asked for come here.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _jobs, _node
from ._errors import RemoteError, from_payload, needed
from ._sizes import size
from ._upload import upload

try:
    import cloudpickle
except ImportError as _error:
    raise needed("nodectl.Graph", "cloudpickle", _error) from None

_WAIT_MS = 8000
CALLS, SCRIPT = "graph.calls", "graph_call.py"
# What a task runs: its call, with the results of others in the places of their calls. Of an exception that the call raises it leaves the
# line of a worker's answer, and the pickle, as the task's value.
CALL = """
import base64, json, os, pickle, sys, traceback
import cloudpickle

class Reader(pickle.Unpickler):
    def persistent_load(self, name):
        # What was done before the job began is among its files.
        path = "have/" + name
        with open(path if os.path.exists(path) else "inputs/%s/result.pickle" % name, "rb") as file:
            return pickle.load(file)

def tell(error):
    trace = traceback.format_exception(type(error), error, error.__traceback__.tb_next)
    told = {"type": type(error).__qualname__, "message": str(error)[:4096], "traceback": "".join(trace)[-16384:]}
    try:
        pickled = base64.b64encode(cloudpickle.dumps(error, 4)).decode()
        told.update(pickled=pickled if len(pickled) <= 16384 else "")
    except Exception:
        pass  # It is told in words.
    with open(os.path.join(home, "result.json"), "w") as file:
        json.dump({"raised": told}, file)

home = os.getcwd()
try:
    with open("graph.calls", "rb") as file:
        file.seek(int(sys.argv[1]))
        function, arguments, named = Reader(file).load()
    with open(os.path.join(home, "result.pickle"), "wb") as file:
        cloudpickle.dump(function(*arguments, **named), file, protocol=4)
except Exception as error:
    traceback.print_exc()
    tell(error)
    sys.exit(1)
"""


class Call:
    """A call of a graph. As an argument of another one it stands for its result, also within lists, tuples and dicts."""

    def __init__(self, graph: "Graph", name: str) -> None:
        self._graph = graph
        #: What its task is called.
        self.name = name

    def __repr__(self) -> str:
        return "<call %s>" % self.name


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Pickles a call. `name_of` has the name of the task whose result a value stands for, if it does."""

    def __init__(self, file: Any, name_of: Callable[[Any], Optional[str]]) -> None:
        super().__init__(file, protocol=4)
        self.persistent_id = name_of


class Graph:
    """Calls that need each other's results.

    :param name: The job's name.
    :param python: The interpreter on the nodes; by default one of this program's version.
    :param sources: Files and directories that calls import or read, found beside them by their own names. Functions of the main
        program and of notebooks travel by themselves.
    :param cpus, memory, gpus: What each call holds: cores, bytes or a text such as `"2 GiB"`, GPUs.
    :param where: Which nodes may run calls, as in a job file.
    :param retries: How often a call is tried again whose process ends before it returns, or that raises an exception.
    :param timeout: Seconds that a call may take.
    """

    def __init__(
        self,
        name: str = "graph",
        *,
        python: Optional[str] = None,
        sources: Sequence[str] = (),
        cpus: float = 1.0,
        memory: Union[int, str] = 0,
        gpus: float = 0.0,
        where: str = "",
        retries: int = 2,
        timeout: Optional[float] = None,
    ) -> None:
        self._python, self._sources = python, [os.fspath(path) for path in sources]
        self._request: Dict[str, Any] = {
            "name": name,
            "where": where,
            "retries": retries,
            "timeout_ms": None if timeout is None else max(1, round(timeout * 1000)),
            "resources": {"cpus": cpus, "memory_bytes": size(memory), "gpus": gpus},
        }
        self._calls = io.BytesIO()
        # Name, where its pickle is, and names of what it needs: a row of the job's parameters.
        self._rows: List[Tuple[str, int, str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """A call of `function` with these arguments, of which some may be, or have in them, earlier calls: their results are
        passed. Nothing runs yet."""
        at = self._calls.seek(0, os.SEEK_END)
        needs: Dict[str, None] = {}

        def name_of(value: Any) -> Optional[str]:
            if not isinstance(value, Call):
                return None
            self._check(value)
            needs[value.name] = None
            return value.name

        try:
            _Pickler(self._calls, name_of).dump((function, args, kwargs))
        except BaseException:
            self._calls.truncate(at)
            raise
        name = "%s-%d" % (_jobs.word(function), len(self._rows))
        self._rows.append((name, at, "\n".join(needs)))
        return Call(self, name)

    def run(self, *wanted: Call) -> Any:
        """Runs all calls; returns the result of the wanted one, or a list of several.

        What a call raised in its last attempt is raised here, with the traceback there as its cause. Calls that need it did not begin.

        :param wanted: Calls of this graph, each an argument: `run(a, b)`.
        :raises RemoteError: A call failed otherwise, or raised what cannot be had here.
        :raises NodeError: The node refuses the graph, or is gone."""
        if not self._rows:
            raise ValueError("the graph has no calls")
        for call in wanted:
            if not isinstance(call, Call):
                raise TypeError("run takes calls of the graph, each an argument, not %r\nhint: of a list, run(*calls)" % (call,))
            self._check(call)
        node, alone = _jobs.open_node()
        job = self._submit(node, alone)
        results = self._wait(node, job, {call.name for call in wanted})
        values = [pickle.loads(_jobs.blob(node, *results[call.name])) for call in wanted]
        return values[0] if len(values) == 1 else values

    def _check(self, call: Call) -> None:
        if call._graph is not self:
            raise ValueError("%r is a call of another graph" % call)

    def _submit(self, node: str, alone: bool) -> str:
        sources = [*self._sources, os.path.dirname(cloudpickle.__file__)]
        made = {CALLS: self._calls.getvalue(), SCRIPT: CALL.encode()}
        task = {
            "name": "{name}",
            "command": [self._python or _node.default_python(alone), SCRIPT, "{at}"],
            "needs": ["{needs}"],
            "params": {"rows": {"columns": ["name", "at", "needs"], "rows": self._rows}},
            "outputs": ["result.pickle"],
        }
        return _jobs.submit(node, {**self._request, "inputs": upload(node, sources, made), "tasks": [task]})

    def _wait(self, node: str, job: str, wanted: "set[str]") -> Dict[str, Tuple[str, str]]:
        """Where the results of the wanted calls are, once all have ended."""
        found: Dict[str, Tuple[str, str]] = {}
        failures: List[Dict[str, Any]] = []
        results = _jobs.Results(node, job)
        while not results.is_over:
            for result in results.page(_WAIT_MS):
                if result["status"] != "done":
                    failures.append(result)
                elif result["name"] in wanted:
                    found[result["name"]] = (result["outputs"][0]["hash"], result["node"])
        if results.phase == "done" and wanted <= set(found):
            return found
        if not failures:
            raise RemoteError("the graph's job was %s" % results.phase)
        # Those that never began only say whom they needed.
        raise _raised(min(failures, key=lambda result: (result.get("failure") or {}).get("kind") == "need_failed"))


def _raised(result: Dict[str, Any]) -> BaseException:
    """What a failed call raised; in words, if its process ended otherwise."""
    value = result.get("value")
    told = value.get("raised") if isinstance(value, dict) else None
    if not isinstance(told, dict):
        return RemoteError(_jobs.failure(result))
    pickled = base64.b64decode(told.pop("pickled", ""))
    told["traceback"] = "In the call %s\n%s" % (result["name"], told["traceback"])
    return from_payload(json.dumps(told).encode() + b"\n" + pickled)
