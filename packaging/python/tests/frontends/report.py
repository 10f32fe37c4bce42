"""A plugin of pytest: a line of JSON in the file FRONTENDS_REPORT for each test that begins and for each that has ended."""

import json
import os


def _tell(name, end, said=""):
    with open(os.environ["FRONTENDS_REPORT"], "a") as file:
        file.write(json.dumps({"name": name, "end": end, "said": said}) + "\n")


def _name(nodeid):
    return nodeid.partition("::")[2] or nodeid


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
