"""Runs one test: `python3 -m tests.upstream.one NAME`. Exit status 0: it passed; 77: it was skipped; 1: it failed."""

import os
import sys
import unittest


def main():
    from tests.upstream import cases

    test = cases.TESTS[sys.argv[1]]
    module = sys.modules[type(test).__module__]
    # What a module's `setUpModule` does is for its runner.
    result = unittest.TextTestRunner(verbosity=0).run(unittest.TestSuite([test]))
    del module
    sys.stderr.flush()
    os._exit(77 if result.skipped else 0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
