"""Pools whose workers run in an environment that nodes make. Needs the variable NODECTL."""

import os
import sys
import tempfile
import unittest
import zipfile

from nodectl import _environment

from .test_solo import Base

OURS = "%d.%d" % sys.version_info[:2]
PROGRAM = """
from nodectl import Pool, PoolError
def task(_):
    import lab_one, sys
    return lab_one.VALUE, "/environments/" in sys.prefix
with Pool(environment={"requirements": "requirements.txt", "wheels": "wheels"}) as pool:
    print(pool.map(task, [1]))
def version(_):
    import sys
    return "%d.%d" % sys.version_info[:2]
with Pool(python="match") as pool:
    print(pool.map(version, [1]))
try:
    with Pool(environment={"requirements": "none.txt", "wheels": "wheels"}) as pool:
        pool.map(version, [1])
except PoolError as error:
    print("lab_none" in str(error).replace("-", "_") and "environment failed: on " in str(error), error)
"""


def wheel(directory, name, value):
    info = "%s-1.0.dist-info/" % name
    texts = {
        name + ".py": "VALUE = %d\n" % value,
        info + "METADATA": "Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n" % name,
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join("%s,,\n" % path for path in [*texts, info + "RECORD"])
    with zipfile.ZipFile(os.path.join(directory, name + "-1.0-py3-none-any.whl"), "w") as archive:
        for path, text in {**texts, info + "RECORD": record}.items():
            archive.writestr(path, text)


class Plans(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def path(self, name, text=""):
        path = os.path.join(self.directory.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_lists_travel_with_those_that_they_name(self):
        self.path("more/limits.txt", "numpy<3\n")
        path = self.path("requirements.txt", "numpy\n-c more/limits.txt\n")
        told, named = _environment.plan({"requirements": path}, None)
        self.assertEqual(told, {"requirements": "environment/requirements.txt", "version": OURS})
        self.assertEqual(sorted(named), ["environment/more/limits.txt", "environment/requirements.txt"])

    def test_a_lock_travels_with_its_project_and_a_project_with_its_files(self):
        self.path("p/pyproject.toml")
        self.path("p/lab/__init__.py")
        lock = self.path("p/uv.lock")
        _, named = _environment.plan({"lock": lock}, None)
        self.assertEqual(sorted(named), ["environment/pyproject.toml", "environment/uv.lock"])
        told, named = _environment.plan({"project": os.path.dirname(lock)}, None)
        self.assertEqual(told["project"], "environment/project")
        self.assertIn("environment/project/lab/__init__.py", named)

    def test_match_is_a_node_s_own_python_of_this_version(self):
        self.assertEqual(_environment.plan(None, "match"), ({"version": OURS}, {}))
        self.assertEqual(_environment.plan(None, "python3"), (None, {}))

    def test_what_no_node_could_make_is_refused(self):
        archive = self.path("env.tar.gz")
        self.assertEqual(_environment.plan({"conda": archive}, None)[0], {"conda": "environment/env.tar.gz"})
        for environment, error in [
            ({"version": "3.1"}, ValueError),
            ({"versoin": OURS}, ValueError),
            ({"requirements": "/none.txt"}, FileNotFoundError),
            ({"lock": archive}, ValueError),
            ({"project": self.directory.name}, ValueError),
            ({"requirements": self.path("a/b.txt", "-r ../c.txt\n")}, ValueError),
        ]:
            with self.assertRaises(error, msg=str(environment)):
                _environment.plan(environment, None)
        with self.assertRaises(ValueError):
            _environment.plan({"conda": archive}, "python3")


class Environments(Base):
    def test_a_pool_brings_its_packages(self):
        wheels = os.path.join(self.directory, "wheels")
        os.mkdir(wheels)
        wheel(wheels, "lab_one", 1)
        for name in ("one", "none"):
            with open(os.path.join(self.directory, "requirements.txt" if name == "one" else "none.txt"), "w") as file:
                file.write("lab_%s==1.0\n" % name)
        lines = self.output(PROGRAM).splitlines()
        self.assertEqual(lines[:2], ["[(1, True)]", "['%s']" % OURS])
        self.assertTrue(lines[2].startswith("True "), lines)


if __name__ == "__main__":
    unittest.main()
