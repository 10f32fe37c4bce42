"""submitit's tests of its executor for one machine and of its plugins, with nodectl's in the place of the former."""

import importlib.util
import os

NAME = "submitit local/test_local.py, core/test_plugins.py, and what they do not ask"
HERE = os.path.dirname(os.path.abspath(__file__))


def missing():
    return None if importlib.util.find_spec("submitit") else "no submitit"


def arguments():
    package = importlib.util.find_spec("submitit").submodule_search_locations[0]
    own = os.path.join(HERE, "test_nodectl_submitit.py")
    return ["-p", __name__, os.path.join(package, "local/test_local.py"), os.path.join(package, "core/test_plugins.py"), own]


def pytest_collection_modifyitems(items):
    """The test's module takes its executor from `local`; submitit itself does not."""
    import types

    import nodectl.submitit

    for module in {item.module for item in items if item.module.__name__.endswith("test_local")}:
        from submitit.local import local

        stand_in = types.SimpleNamespace(**vars(local))
        stand_in.LocalExecutor, stand_in.LocalJob = nodectl.submitit.NodectlExecutor, nodectl.submitit.NodectlJob
        module.local = stand_in
