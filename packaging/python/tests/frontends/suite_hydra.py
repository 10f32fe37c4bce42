"""Hydra's tests of launchers, with nodectl's."""

import importlib.util
import os

NAME = "hydra launcher_common_tests, and what they do not ask"
CORES = "2"


def missing():
    return None if importlib.util.find_spec("hydra") else "no hydra"


def arguments():
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_hydra.py")]
