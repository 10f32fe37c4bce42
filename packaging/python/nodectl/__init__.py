"""Worker pools and kernels on the machines of a lab, over nodectl.

    from nodectl import Pool

    class Square:
        def run(self, x):
            return x * x

    with Pool(Square) as pool:
        print(pool.map(range(10)))

Compute shaders run on numpy arrays, on every GPU:

    import nodectl

    y = nodectl.kernel("saxpy.wgsl", x, uniforms={"a": 2.0})

In notebooks pools and jobs show how far they are, and after `%load_ext nodectl` a cell that begins with `%%nodectl` runs as a job.

It works on this machine alone, and uses the whole cluster where this machine is a node (`nodectl join`).
"""

import importlib
from typing import TYPE_CHECKING

from ._errors import KernelError, NodeError, PoolError, RemoteError, RemoteTraceback, UpdateFailed
from ._node import DEFAULT_PORT, VERSION
from .cluster import is_client_running, is_server_running, start_head_node, start_node, start_redis, start_server
from .worker import WorkerInterface

if TYPE_CHECKING:
    from . import dask as dask, ewoks as ewoks, futures as futures, jax as jax, joblib as joblib, notebook as notebook
    from . import optuna as optuna, params as params, parsl as parsl, submitit as submitit, torch as torch
    from ._broken import PoolBroken, WorkerLost
    from ._kernel import kernel
    from .executor import Executor
    from .functions import FunctionPool
    from .futures import remote
    from .graph import Graph
    from .job import Job, submit
    from .log import Log
    from .pool import Pool

__version__ = VERSION
__all__ = [
    "DEFAULT_PORT",
    "Executor",
    "FunctionPool",
    "Graph",
    "Job",
    "KernelError",
    "Log",
    "NodeError",
    "Pool",
    "PoolBroken",
    "PoolError",
    "RemoteError",
    "RemoteTraceback",
    "UpdateFailed",
    "WorkerInterface",
    "WorkerLost",
    "is_client_running",
    "is_server_running",
    "kernel",
    "remote",
    "start_head_node",
    "start_node",
    "start_redis",
    "start_server",
    "submit",
]

# Modules that are part of the package, as `nodectl.NAME`, without being imported by name. Of most the library may be missing.
_MODULES = ("dask", "ewoks", "futures", "jax", "joblib", "notebook", "optuna", "params", "parsl", "submitit", "torch")

# What is loaded when asked for, and its module: half of the time that importing would take, and workers that open no pools need
# no cloudpickle.
_LAZY = {
    "Executor": "executor",
    "FunctionPool": "functions",
    "Graph": "graph",
    "Job": "job",
    "Log": "log",
    "Pool": "pool",
    "PoolBroken": "_broken",
    "WorkerLost": "_broken",
    "kernel": "_kernel",
    "remote": "futures",
    "submit": "job",
}


def load_ipython_extension(shell: object) -> None:
    """For `%load_ext nodectl`."""
    from .notebook import load_ipython_extension

    load_ipython_extension(shell)


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module("nodectl." + _LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module("nodectl." + name)
    raise AttributeError("module 'nodectl' has no attribute %r" % name)
