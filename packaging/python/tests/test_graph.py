"""Graphs of calls: on a node that the program starts, or in a cluster. Needs the variable NODECTL."""

import faulthandler
import os
import shutil
import sys
import tempfile
import unittest

import cloudpickle

import nodectl
from nodectl import NodeError, RemoteError

# As the functions of a program do, these travel.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def total(parts, more):
    return sum(parts) + sum(more.values())


class Lacking(Exception):
    pass


def fails_with_a_key(note):
    return {}[note]


def fails_in_its_own_way(note):
    raise Lacking(note)


def fails_for_itself(note):
    class Selfish(Exception):
        def __reduce__(self):
            raise TypeError("stays where it is")

    raise Selfish("no %s" % note)


def ends(note):
    print(note)
    os._exit(3)


class Graphs(unittest.TestCase):
    def setUp(self):
        faulthandler.dump_traceback_later(300, exit=True)
        if "NODECTL_NODE__DATA_DIR" not in os.environ:
            directory = tempfile.mkdtemp(prefix="nodectl-")
            self.addClassCleanup(shutil.rmtree, directory, True)
            os.environ.update(NODECTL_NODE__DATA_DIR=os.path.join(directory, "data"))
            os.environ.update(NODECTL_NETWORK__MDNS="false", NODECTL_NETWORK__BEACON_PORT="0", NODECTL_NETWORK__INTERFACES='["lo"]')
        self.options = {"cpus": 0.1, "retries": 0}

    def test_results_are_arguments_of_others(self):
        graph = nodectl.Graph(**self.options)
        parts = [graph.call(pow, k, 2) for k in range(6)]
        whole = graph.call(total, parts, more={"a": parts[1], "b": 10})
        self.assertEqual(graph.run(whole, parts[3]), [66, 9])

    def test_what_a_call_raises_is_raised_with_its_traceback(self):
        for fails, kind in ((fails_with_a_key, KeyError), (fails_in_its_own_way, Lacking)):
            graph = nodectl.Graph(**self.options)
            bad = graph.call(fails, "luck")
            with self.assertRaises(kind) as raised:
                graph.run(graph.call(total, [bad], more={}))
            self.assertEqual(raised.exception.args, ("luck",))
            self.assertIsInstance(raised.exception.__cause__, nodectl.RemoteTraceback)
            self.assertIn("In the call %s-0\n" % fails.__name__.replace("_", "-"), str(raised.exception.__cause__))
            self.assertIn("in %s\n" % fails.__name__, str(raised.exception.__cause__))

    def test_a_call_may_go_to_another_directory(self):
        graph = nodectl.Graph(**self.options)
        gone, total_of = graph.call(os.chdir, "/"), graph.call(pow, 2, 3)
        self.assertEqual(graph.run(gone, total_of), [None, 8])

    def test_a_failure_that_is_no_exception_is_told(self):
        for fails, words in ((ends, "ends-0: exit status 3"), (fails_for_itself, "Selfish: no luck")):
            graph = nodectl.Graph(**self.options)
            with self.assertRaisesRegex(RemoteError, words):
                graph.run(graph.call(fails, "luck"))

    def test_a_call_of_another_graph_is_no_argument(self):
        other = nodectl.Graph().call(pow, 2, 2)
        with self.assertRaises(ValueError):
            nodectl.Graph().call(pow, other, 2)
        with self.assertRaises(ValueError):
            nodectl.Graph().run()

    def test_a_graph_that_no_node_has_room_for_is_refused_with_a_hint_for_programs(self):
        graph = nodectl.Graph(cpus=10_000)
        with self.assertRaises(NodeError) as raised:
            graph.run(graph.call(pow, 2, 2))
        why, _, hint = str(raised.exception).partition("\nhint: ")
        self.assertIn("needs 10000 cores", why)
        # Not the one for job files.
        self.assertEqual(hint, "ask for less (`nodectl nodes` shows what nodes have), or add a machine that has as much")

    def test_what_is_no_call_of_the_graph_cannot_be_run(self):
        graph = nodectl.Graph(**self.options)
        calls = [graph.call(pow, 2, 2), graph.call(pow, 3, 2)]
        with self.assertRaisesRegex(TypeError, r"hint: of a list, run\(\*calls\)"):
            graph.run(calls)
        with self.assertRaisesRegex(ValueError, "call of another graph"):
            graph.run(nodectl.Graph().call(pow, 2, 2))


if __name__ == "__main__":
    unittest.main()
