"""Pools, jobs and cells in a notebook's shell. IPython's own tests are of itself, none of which is replaced here."""

import importlib.util
import os

NAME = "pools, jobs and cells in IPython"


def missing():
    return None if importlib.util.find_spec("IPython") else "no IPython"


def arguments():
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_notebook.py")]
