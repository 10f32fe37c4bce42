"""Snakemake's tests of executor plugins, and what they do not ask."""

import importlib.util
import os

NAME = "snakemake.common.tests, and what they do not ask"


def missing():
    return None if importlib.util.find_spec("snakemake") else "no snakemake"


def arguments():
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_snakemake.py")]
