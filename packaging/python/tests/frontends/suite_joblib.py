"""joblib's own tests of `Parallel`, with nodectl among its backends."""

import importlib.util
import os

NAME = "joblib test/test_parallel.py, and what it does not ask"
CORES = "2"
LIMIT_SECONDS = 120
REGISTER = "import nodectl.joblib; nodectl.joblib.register()\n"
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_joblib.py")


def missing():
    return None if importlib.util.find_spec("joblib") and importlib.util.find_spec("numpy") else "no joblib and numpy"


def arguments():
    module = importlib.util.find_spec("joblib").submodule_search_locations[0]
    return ["-p", __name__, "-o", "filterwarnings=default", os.path.join(module, "test", "test_parallel.py"), OWN]


def pytest_configure(config):
    import nodectl.joblib

    nodectl.joblib.register()


def pytest_generate_tests(metafunc):
    """Puts nodectl beside the backends of processes in tests that name those. Other lists are made from what is registered."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names, values = mark.args[:2]
        if names in ("backend", "inner_backend", "outer_backend") and "multiprocessing" in values and isinstance(values, list):
            if "nodectl" not in values:
                values.append("nodectl")


def pytest_collection_modifyitems(items):
    """Programs that tests start register the backend, as programs do that use it, and may take longer: so may an interpreter on a
    busy machine."""
    for module in {item.module for item in items if hasattr(item.module, "check_subprocess_call")}:
        check = module.check_subprocess_call

        def with_backend(command, timeout=None, check=check, **options):
            *command, program = command
            if command[-1] == "-c":
                program = REGISTER + program
            else:
                with open(program) as file:
                    text = file.read()
                with open(program, "w") as file:
                    file.write(REGISTER + text)
            return check([*command, program], timeout=LIMIT_SECONDS, **options)

        module.check_subprocess_call = with_backend
