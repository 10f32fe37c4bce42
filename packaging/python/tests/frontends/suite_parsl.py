"""Parsl's tests of apps, with nodectl as its executor."""

import importlib.util
import os

NAME = "parsl tests of apps"
HERE = os.path.dirname(os.path.abspath(__file__))
#: Those that use whatever executor is configured; others test Parsl's own executors, providers and monitoring.
DIRECTORIES = ("test_python_apps", "test_bash_apps", "test_error_handling", "test_checkpointing", "test_regression", "test_callables.py")


def missing():
    return None if importlib.util.find_spec("parsl") else "no parsl"


def arguments():
    tests = os.path.join(importlib.util.find_spec("parsl").submodule_search_locations[0], "tests")
    config = os.path.join(HERE, "parsl_config.py")
    # Root may write everywhere.
    chosen = "not unix_filesystem_permissions_required" if os.geteuid() == 0 else ""
    return ["--config=" + config, "-k", "not cleannet", "-m", chosen, *(os.path.join(tests, name) for name in DIRECTORIES)]
