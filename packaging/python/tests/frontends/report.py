"""A plugin of pytest: leaves out what the file FRONTENDS_EXCLUSIONS says, and writes a line of JSON into the file FRONTENDS_REPORT for
each test that begins, has ended or is left out, and for each exclusion that fits no test."""

import json
import os

import pytest

from tests import suites

_EXCLUDED = suites.exclusions(os.environ["FRONTENDS_EXCLUSIONS"])
#: Files and directories are left out before anything in them is read.
_PATHS = [one for one in _EXCLUDED if one.kind == "never" and (one.pattern.endswith((".py", "/")))]
_met = set()


def _tell(name, end, said=""):
    with open(os.environ["FRONTENDS_REPORT"], "a") as file:
        file.write(json.dumps({"name": name, "end": end, "said": said}) + "\n")


def _name(nodeid):
    return nodeid.partition("::")[2] or nodeid


def _is_left_out(fitting):
    """Of a test that those exclusions fit."""
    kinds = {one.kind for one in fitting}
    is_slow = "slow" in kinds and not os.environ.get("FRONTENDS_ALL")
    is_other = "only" not in kinds and any(one.kind == "only" for one in _EXCLUDED)
    return "never" in kinds or is_slow or is_other or ("user" in kinds and os.geteuid() == 0)


def pytest_ignore_collect(collection_path):
    fitting = [one for one in _PATHS if ("/%s/" % collection_path.as_posix()).endswith("/%s/" % one.pattern.rstrip("/"))]
    _met.update(fitting)
    return True if fitting else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    kept, left_out = [], []
    for item in items:
        file, name = os.path.basename(item.nodeid.partition("::")[0]), _name(item.nodeid)
        fitting = [one for one in _EXCLUDED if one.fits(name) or one.fits("%s::%s" % (file, name))]
        _met.update(fitting)
        (left_out if _is_left_out(fitting) else kept).append(item)
    for item in left_out:
        _tell(_name(item.nodeid), "left out")
    for one in set(_EXCLUDED) - _met:
        _tell(one.pattern, "failed", "no test has this name, which is among the exclusions")
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_runtest_logstart(nodeid, location):
    _tell(_name(nodeid), "begun")


def pytest_runtest_logreport(report):
    name = _name(report.nodeid)
    if report.skipped:
        _tell(name, "skipped")
    elif report.failed and report.when in ("setup", "call"):
        _tell(name, "failed", report.longreprtext)
    elif report.failed:
        _tell(name + " (its end)", "failed", report.longreprtext)
    elif report.when == "call":
        _tell(name, "passed")


def pytest_collectreport(report):
    if report.failed:
        _tell(report.nodeid, "failed", report.longreprtext)
