"""Pools, jobs and cells in a notebook's shell and in a kernel. IPython's own tests are of itself, none of which is replaced here."""

import importlib.util
import os

NAME = "pools, jobs and cells in IPython"
MODULES = ("IPython", "ipykernel", "jupyter_client")


def missing():
    absent = [module for module in MODULES if not importlib.util.find_spec(module)]
    return "no " + ", ".join(absent) if absent else None


def arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, file) for file in ("test_nodectl_notebook.py", "test_nodectl_kernel.py")]
