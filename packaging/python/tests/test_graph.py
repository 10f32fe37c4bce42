"""Graphs of calls: on a node that the program starts, or in a cluster. Needs the variable NODECTL."""

import faulthandler
import os
import shutil
import sys
import tempfile
import unittest

import cloudpickle

import nodectl
from nodectl import RemoteError

# As the functions of a program do, these travel.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def total(parts, more):
    return sum(parts) + sum(more.values())


def fails(note):
    raise ValueError("no %s" % note)


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

    def test_a_failure_is_raised_with_its_traceback(self):
        graph = nodectl.Graph(**self.options)
        bad = graph.call(fails, "luck")
        with self.assertRaises(RemoteError) as raised:
            graph.run(graph.call(total, [bad], more={}))
        self.assertIn("fails-0: exit status 1", str(raised.exception))
        self.assertIn("ValueError: no luck", str(raised.exception))

    def test_a_call_of_another_graph_is_no_argument(self):
        other = nodectl.Graph().call(pow, 2, 2)
        with self.assertRaises(ValueError):
            nodectl.Graph().call(pow, other, 2)
        with self.assertRaises(ValueError):
            nodectl.Graph().run()


if __name__ == "__main__":
    unittest.main()
