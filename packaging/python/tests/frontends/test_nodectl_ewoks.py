"""The engine of ewoks, beyond ewokscore's examples."""

import ewoks
import pytest
from ewokscore.tests.examples.graphs import get_graph

SUM = "ewokscore.tests.examples.tasks.sumtask.SumTask"


def chain(*links, **inputs):
    nodes = []
    for name, given in inputs.items():
        values = [{"name": key, "value": value} for key, value in given.items()]
        nodes.append({"id": name, "task_type": "class", "task_identifier": SUM, "default_inputs": values})
    return {"graph": {"id": "chain"}, "nodes": nodes, "links": [dict(link) for link in links]}


LINK = {"source": "first", "target": "second", "data_mapping": [{"source_output": "result", "target_input": "a"}]}


def test_nodectl_is_an_engine_that_ewoks_finds():
    workflow = chain(LINK, first={"a": 1, "b": 2}, second={"b": 4})
    assert ewoks.execute_graph(workflow, engine="nodectl", cpus=0.5) == {"result": 7}


def test_nodectl_gives_the_outputs_that_are_asked_for():
    workflow = chain(LINK, first={"a": 1, "b": 2}, second={"b": 4})
    found = ewoks.execute_graph(workflow, engine="nodectl", outputs=[{"all": True}], merge_outputs=False, cpus=0.5)
    assert found == {"first": {"result": 3}, "second": {"result": 7}}


def test_nodectl_tells_of_a_task_that_fails_and_why():
    with pytest.raises(RuntimeError, match="unsupported operand|can only concatenate"):
        ewoks.execute_graph(chain(first={"a": 1, "b": "two"}), engine="nodectl", cpus=0.5)


def test_nodectl_refuses_circles():
    workflow, _ = get_graph("cyclic1")
    with pytest.raises(RuntimeError, match="circles"):
        ewoks.execute_graph(workflow, engine="nodectl")
