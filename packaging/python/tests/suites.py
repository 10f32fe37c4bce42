"""What runs tests of other projects' against the package: a node for them, and the lists of meant differences."""

import contextlib
import os
import re
import shutil
import sys
import tempfile

from nodectl import _node

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


def differences(path):
    """The reasons, by the names of tests or patterns of them. Without the file, all tests are meant to pass."""
    reason, found = "", {}
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        for line in file:
            if line.startswith("# "):
                reason = line[2:].strip()
            elif line.strip():
                found[line.strip()] = reason
    return found


def counted(counts):
    """The counts in a line."""
    return ", ".join("%d %s" % (count, end) for end, count in counts.items())
