"""ewokscore's tests of its example workflows, with nodectl as the engine."""

import importlib.util
import os

NAME = "ewokscore tests/test_examples.py, and what they do not ask"
HERE = os.path.dirname(os.path.abspath(__file__))


def missing():
    return None if importlib.util.find_spec("ewokscore") and importlib.util.find_spec("ipykernel") else "no ewokscore and ipykernel"


def arguments():
    package = importlib.util.find_spec("ewokscore").submodule_search_locations[0]
    return ["-p", __name__, os.path.join(package, "tests/test_examples.py"), os.path.join(HERE, "test_nodectl_ewoks.py")]


class Ended:
    """What the tests ask of a task."""

    done = True

    def __init__(self, outputs):
        self._outputs = outputs

    def get_output_values(self):
        return self._outputs


def pytest_collection_modifyitems(items):
    import ewokscore.tests.conftest as conftest
    import nodectl.ewoks
    from ewokscore.variable import value_from_transfer

    class Engine(nodectl.ewoks.NodectlEngine):
        """Tasks do not come back from the nodes, their outputs do."""

        def execute_graph(self, graph, output_tasks=False, **options):
            if not output_tasks:
                return super().execute_graph(graph, **options)
            found = super().execute_graph(graph, outputs=[{"all": True}], merge_outputs=False, **options)
            varinfo = options.get("varinfo")
            return {
                node_id: Ended({name: value_from_transfer(value, varinfo=varinfo) for name, value in made.items()})
                for node_id, made in found.items()
            }

    conftest.CoreWorkflowEngine = Engine
