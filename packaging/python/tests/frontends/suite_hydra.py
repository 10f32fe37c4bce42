"""Hydra's tests of launchers, with nodectl's."""

import importlib.util
import os

NAME = "hydra launcher_common_tests, and what they do not ask"


def missing():
    return None if importlib.util.find_spec("hydra") else "no hydra"


#: Half of a minute: with FRONTENDS_ALL=1 only.
LEFT_OUT = "OtherFiles and not 2_jobs or TestIntegration and not orig"


def arguments():
    chosen = [] if os.environ.get("FRONTENDS_ALL") else ["-k", "not (%s)" % LEFT_OUT]
    return [*chosen, os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_hydra.py")]
