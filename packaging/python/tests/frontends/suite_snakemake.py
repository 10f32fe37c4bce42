"""Snakemake's tests of executor plugins, and what they do not ask."""

import importlib.util
import os

NAME = "snakemake.common.tests, and what they do not ask"


def missing():
    return None if importlib.util.find_spec("snakemake") else "no snakemake"


#: They start Snakemake several times: with FRONTENDS_ALL=1 only.
LEFT_OUT = "TestWithoutSharedFiles or test_group_workflow or test_attempts or test_a_rule_has or test_rules_that_are_ready or somebody_else"


def arguments():
    chosen = [] if os.environ.get("FRONTENDS_ALL") else ["-k", "not (%s)" % LEFT_OUT]
    return [*chosen, os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_snakemake.py")]
