"""What runs tests of other projects' against the package: a node for them, and the files that say which are excluded."""

import contextlib
import fnmatch
import os
import re
import shutil
import sys
import tempfile
import typing

from nodectl import _node

#: What a file of exclusions may say of tests, by a line's first word.
KINDS = (
    # They run, and are not meant to pass: one that passes is a failure.
    "fails",
    # They do not run.
    "never",
    # They do not run as root.
    "user",
    # They run with FRONTENDS_ALL=1 only.
    "slow",
    # All others do not run.
    "only",
)

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@contextlib.contextmanager
def node(cores):
    """A node of this machine alone, which what is started meanwhile finds; gives a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="nodectl-") as directory:
        os.environ["NODECTL_NODE__DATA_DIR"] = os.path.join(directory, "data")
        os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE, installed(directory), os.environ.get("PYTHONPATH", "")])
        settings = {"NODECTL_NODE__CORES": cores, "NODECTL_NODE__NICE": "0"}
        settings.update(NODECTL_NETWORK__MDNS="false", NODECTL_NETWORK__BEACON_PORT="0")
        # Tasks that run `python` run this one.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        started = _node.NodeProcess(["solo"], None, {**settings, "PATH": path, "NODECTL_NETWORK__INTERFACES": '["lo"]'})
        try:
            assert started.greeting, started.failure()
            yield directory
        finally:
            started.stop()
            # Where Python keeps all that it compiled, modules of this directory among it.
            if sys.pycache_prefix:
                shutil.rmtree(sys.pycache_prefix + os.path.realpath(directory), ignore_errors=True)


def installed(directory):
    """A directory by which libraries find the package's entry points, as if it were installed."""
    with open(os.path.join(PACKAGE, "pyproject.toml")) as file:
        project = file.read()
    info = os.path.join(directory, "installed", "nodectl-%s.dist-info" % _node.VERSION)
    os.makedirs(info)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: nodectl\nVersion: %s\n" % _node.VERSION)
    with open(os.path.join(info, "entry_points.txt"), "w") as file:
        for group, lines in re.findall(r'^\[project\.entry-points\."?([\w.]+)"?\]\n((?:.+\n)*)', project, flags=re.M):
            file.write("[%s]\n%s\n" % (group, lines.replace('"', "")))
    return os.path.dirname(info)


class Exclusion(typing.NamedTuple):
    """What is said of tests whose names fit a pattern, and the reason."""

    kind: str
    pattern: str
    reason: str
    #: Of the interpreter: before, there is no such test.
    since: typing.Tuple[int, ...] = ()

    def fits(self, name):
        # Square brackets are part of a test's name, not of a pattern.
        return fnmatch.fnmatchcase(name, self.pattern.replace("[", "[[]"))


def exclusions(path):
    """Those of a file, in which each paragraph is a reason, in lines that begin with `#`, and lines `KIND PATTERN`, or `KIND
    PATTERN VERSION` of tests that older interpreters lack. Without the file, all tests run, and are meant to pass."""
    found, reason, is_reason = [], [], False
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        for line in map(str.strip, file):
            if line.startswith("#"):
                reason = [*reason, line[1:].strip()] if is_reason else [line[1:].strip()]
            elif line:
                kind, pattern, *version = line.split()
                assert kind in KINDS and reason, "%s: %s" % (path, line)
                since = tuple(int(number) for word in version for number in word.split("."))
                found.append(Exclusion(kind, pattern, " ".join(reason), since))
            is_reason = line.startswith("#")
    return found


def exclusions_of(suite):
    return os.path.join(PACKAGE, "tests/exclusions", suite + ".txt")


def stale(excluded, names):
    """Exclusions that fit none of all tests that there are."""
    return [one for one in excluded if sys.version_info >= one.since and not any(map(one.fits, names))]


def nothing_counted():
    return dict.fromkeys(("passed", "skipped", "failed", "meant differences", "left out"), 0)


def counted(counts):
    """The counts in a line."""
    return ", ".join("%d %s" % (count, end) for end, count in counts.items())
