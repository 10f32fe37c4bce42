"""Parsl's tests, with nodectl as its executor. Those that bring a configuration of their own are left out by Parsl itself."""

import importlib.util
import os

NAME = "parsl tests"
HERE = os.path.dirname(os.path.abspath(__file__))


def missing():
    return None if importlib.util.find_spec("parsl") else "no parsl"


def arguments():
    tests = os.path.join(importlib.util.find_spec("parsl").submodule_search_locations[0], "tests")
    config = os.path.join(HERE, "parsl_config.py")
    return ["--config=" + config, tests]
