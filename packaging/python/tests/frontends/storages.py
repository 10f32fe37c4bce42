"""Optuna's own tests of storages, at a cluster whose nodes die: says when a test begins, and at the end how many passed."""

import os

import pytest


class Teller:
    def __init__(self):
        self.passed = self.failed = 0

    def pytest_runtest_logstart(self, nodeid, location):
        print("begins", flush=True)

    def pytest_runtest_logreport(self, report):
        self.passed += report.passed and report.when == "call"
        self.failed += report.failed
        if report.failed:
            print(report.longreprtext, flush=True)


def main():
    teller = Teller()
    here = os.path.dirname(os.path.abspath(__file__))
    suite = os.path.join(here, "test_optuna_storage.py") + "::TestJournalInALog"
    pytest.main(["-p", "no:cacheprovider", "-p", "no:terminal", "--capture=no", suite], plugins=[teller])
    print("%d passed, %d failed" % (teller.passed, teller.failed), flush=True)


if __name__ == "__main__":
    main()
