"""What CPython's tests know by its name in the standard library is ours. `-c` programs of theirs begin with this module, too."""

import concurrent.futures
import multiprocessing.pool
import os

import nodectl
from test.support import script_helper


class ProcessPoolExecutor(nodectl.Executor):
    """`Executor` by the name that tests put into programs."""


concurrent.futures.ProcessPoolExecutor = concurrent.futures.process.ProcessPoolExecutor = ProcessPoolExecutor
concurrent.futures.process._RemoteTraceback = multiprocessing.pool.RemoteTraceback = nodectl.RemoteTraceback
multiprocessing.Pool = nodectl.Pool
run_python = script_helper.assert_python_ok


def assert_python_ok(option, code, **variables):
    own = "import tests.upstream.adaptation\n"
    return run_python(option, own + code, PYTHONPATH=os.environ["PYTHONPATH"], **variables)


script_helper.assert_python_ok = assert_python_ok
