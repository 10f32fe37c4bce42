"""The tests, by names that hold for all versions of CPython."""

import importlib
import multiprocessing
import re
import unittest

from . import adaptation

# CPython makes classes of tests for each kind of pool, by mixins. Those of this one are known without it.
_MIXIN = "ProcessPoolSpawn"
_PARTS = ("test_wait", "test_as_completed", "test_process_pool", "test_init", "test_shutdown", "test_deadlock")


def executor_classes():
    """Classes of tests of executors, by their names."""
    try:
        modules = [importlib.import_module("test.test_concurrent_futures." + part) for part in _PARTS]
    except ModuleNotFoundError:
        # A single file up to Python 3.12.
        modules = [importlib.import_module("test.test_concurrent_futures")]
    for module in modules:
        for name, found in vars(module).items():
            if isinstance(found, type) and issubclass(found, unittest.TestCase) and re.match(r"[A-Z][a-z]+Pool", name):
                yield name[len(_MIXIN) :] if name.startswith(_MIXIN) else name, found


def pool_classes():
    """Classes of tests of pools."""
    theirs = importlib.import_module("test._test_multiprocessing")
    theirs.multiprocessing = multiprocessing

    class Pools(theirs.ProcessesMixin):
        Pool = staticmethod(adaptation.nodectl.Pool)

    for name in ("_TestPool", "_TestPoolWorkerErrors", "_TestPoolWorkerLifetime"):
        made = type(name[1:], (getattr(theirs, name), Pools, unittest.TestCase), {"__module__": __name__})
        globals()[made.__name__] = made
        yield made.__name__, made


def all_tests():
    """Every test, by its name: Class.method."""
    loader = unittest.TestLoader()
    classes = [*executor_classes(), *pool_classes()]
    return {"%s.%s" % (name, test): found(test) for name, found in classes for test in loader.getTestCaseNames(found)}


TESTS = all_tests()
