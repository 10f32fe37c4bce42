"""mpi4py's tests of its executor, which are CPython's ported to another one, run against `nodectl.Executor`. The file is that of
the source distribution; what it looks up in MPI is in `mpi`, beside this file."""

import os
import sys

import nodectl

NAME = "mpi4py demo/futures/test_futures.py"
CORES = "2"
SOURCE = os.path.join(sys.prefix, "src/mpi4py/demo/futures/test_futures.py")
STAND_INS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi")


def missing():
    return None if os.path.exists(SOURCE) else "mpi4py's sources are not below target/python-frontends"


def arguments():
    return ["-p", __name__, SOURCE]


class MPIPoolExecutor(nodectl.Executor):
    """`Executor`, and what tests ask of its counterpart beyond the standard library's interface: how many workers it has."""

    @property
    def num_workers(self):
        try:
            return self.pool.get_workers_count()
        except nodectl.PoolError:
            return 0


def pytest_configure(config):
    sys.path.insert(0, STAND_INS)
    from mpi4py import futures

    futures.MPIPoolExecutor = MPIPoolExecutor
    futures._core.RemoteTraceback = nodectl.RemoteTraceback


def pytest_runtest_teardown(item):
    # Tests leave executors open, whose workers hold what the next test's wait for.
    from nodectl import executor

    for one in list(executor._executors):
        one.pool.close()
