"""The names of the module under test: those of the standard library, and the executor, which `suite_executor.py` puts there."""

import concurrent.futures
from types import SimpleNamespace
from concurrent.futures import *  # noqa: F403

BrokenExecutor = concurrent.futures.BrokenExecutor
MPIPoolExecutor = MPICommExecutor = get_comm_workers = None
_core = SimpleNamespace(SharedPool=None, MAIN_RUN_NAME="__main__")
