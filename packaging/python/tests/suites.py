"""What runs tests of other projects' against the package: a node for them, and the lists of meant differences."""

import contextlib
import os
import tempfile

from nodectl import _node

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@contextlib.contextmanager
def node(cores):
    """A node of this machine alone, which what is started meanwhile finds; gives a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="nodectl-") as directory:
        os.environ["NODECTL_NODE__DATA_DIR"] = os.path.join(directory, "data")
        os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")])
        settings = {"NODECTL_NODE__CORES": cores, "NODECTL_NETWORK__MDNS": "false", "NODECTL_NETWORK__BEACON_PORT": "0"}
        started = _node.NodeProcess(["solo"], None, {**settings, "NODECTL_NETWORK__INTERFACES": '["lo"]'})
        try:
            assert started.greeting, started.failure()
            yield directory
        finally:
            started.stop()


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
