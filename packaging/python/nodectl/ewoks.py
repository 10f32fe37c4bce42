"""An engine for ewoks: workflows run as graphs of tasks on the machines of the lab.

    from ewoks import execute_graph

    execute_graph("workflow.json", engine="nodectl")

Each node of the workflow is a task of one job, a process of its own, and what passes from one to the next stays on the machines: there
is no broker and no queue to keep. Nodes need ewokscore, and the packages of the workflow's tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ._errors import NodeError, needed
from .graph import Call, Graph

try:
    from ewokscore import events
    from ewokscore.bindings import execute_graph_decorator, load_graph
    from ewokscore.engine_interface import WorkflowEngine
    from ewokscore.graph import analysis, graph_io
    from ewokscore.inittask import add_dynamic_inputs, instantiate_task
except ImportError as _error:
    raise needed("nodectl.ewoks", "ewokscore", _error) from None

if TYPE_CHECKING:

    class _Engine:
        """What ewoks' engines are made from: it has no types."""

else:
    _Engine = WorkflowEngine


class NodectlEngine(_Engine):
    """ewoks' interface to `nodectl.Graph`."""

    def execute_graph(
        self,
        graph: Any,
        *,
        inputs: Optional[List[Dict[str, Any]]] = None,
        load_options: Optional[Dict[str, Any]] = None,
        varinfo: Optional[Dict[str, Any]] = None,
        execinfo: Any = None,
        task_options: Optional[Dict[str, Any]] = None,
        outputs: Optional[List[Dict[str, Any]]] = None,
        merge_outputs: Optional[bool] = True,
        **graph_options: Any,
    ) -> Optional[Dict[str, Any]]:
        """Executes a workflow; returns the outputs that are asked for.

        :param graph_options: As for `nodectl.Graph`: `cpus`, `gpus`, `memory`, `where`, `sources`, `retries`, ...
        :raises RuntimeError: A task failed, or the workflow has circles or conditional links, which only engines run that decide while
            they go on."""
        found: Optional[Dict[str, Any]] = _execute(
            graph,
            inputs=inputs,
            load_options=load_options,
            varinfo=varinfo,
            execinfo=execinfo,
            task_options=task_options,
            outputs=outputs,
            merge_outputs=merge_outputs,
            graph_options=graph_options,
        )
        return found


@execute_graph_decorator(engine="nodectl")  # type: ignore[misc, unused-ignore, untyped-decorator]
def _execute(
    graph: Any,
    *,
    inputs: Any = None,
    load_options: Any = None,
    varinfo: Any = None,
    execinfo: Any = None,
    task_options: Any = None,
    outputs: Any = None,
    merge_outputs: Any = True,
    graph_options: Any = None,
) -> Dict[str, Any]:
    workflow = load_graph(graph, inputs=inputs, **(load_options or {}))
    with events.workflow_context(execinfo, workflow=workflow.graph) as execinfo:
        if workflow.is_cyclic:
            raise RuntimeError("the engine nodectl does not run workflows with circles\nhint: the engine ppf does")
        if workflow.has_conditional_links:
            raise RuntimeError("the engine nodectl does not run workflows with conditional links\nhint: the engine ppf does")
        shared = {"varinfo": varinfo, "execinfo": execinfo, "task_options": task_options}
        return _run(workflow.graph, shared, graph_io.parse_outputs(workflow.graph, outputs), merge_outputs, graph_options or {})


def _run(workflow: Any, shared: Dict[str, Any], outputs: Any, merge_outputs: Any, graph_options: Dict[str, Any]) -> Dict[str, Any]:
    options = {"name": str(workflow.graph.get("id") or "ewoks"), "retries": 0, **graph_options}
    graph = Graph(**options)
    calls: Dict[Any, Call] = {}
    for node_id in analysis.topological_sort(workflow):
        sources = [(source, workflow[source][node_id], calls[source]) for source in analysis.node_predecessors(workflow, node_id)]
        calls[node_id] = graph.call(_task, node_id, dict(workflow.nodes[node_id]), sources, shared)
    if not calls:
        return {}
    asked_for = {output["id"] for output in outputs}
    wanted = [node_id for node_id in calls if node_id in asked_for]
    try:
        found = graph.run(*[calls[node_id] for node_id in wanted])
    except NodeError:
        raise
    except Exception as error:
        raise RuntimeError("Execution failed: %s" % error) from error
    values: Dict[str, Any] = {}
    for node_id, of_task in zip(wanted, [found] if len(wanted) == 1 else found):
        graph_io.add_output_values(values, node_id, of_task, outputs, merge_outputs=merge_outputs)
    return values


def _task(node_id: Any, attributes: Dict[str, Any], sources: Any, shared: Dict[str, Any]) -> Any:
    """Runs a task, on whatever machine: its outputs, or where they are kept."""
    inputs: Dict[str, Any] = {}
    for source_id, link, results in sources:
        add_dynamic_inputs(inputs, link, results, source_id=source_id, target_id=node_id)
    task = instantiate_task(node_id, attributes, inputs=inputs, **shared)
    task.execute()
    return task.get_output_transfer_data()
