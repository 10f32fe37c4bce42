"""Calls on nodes and their futures: programs of the kinds that users of Ray's core and of dask's futures write. No suite of theirs fits."""

import importlib.util
import os

NAME = "calls on nodes, and their futures"


def missing():
    return None if importlib.util.find_spec("cloudpickle") else "no cloudpickle"


def arguments():
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_futures.py")]
