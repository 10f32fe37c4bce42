"""The command `start_node` of `distributed_computing`, over nodectl."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import List, Optional

from nodectl import DEFAULT_PORT, NodeError, start_head_node, start_node


def main(arguments: Optional[List[str]] = None) -> int:
    """Starts a node and waits for it to end."""
    parser = argparse.ArgumentParser(prog="start_node", description="Makes this machine a node.")
    parser.add_argument("--head", action="store_true", help="listen on the port")
    parser.add_argument("-r", "--password", required=True, help="the cluster's secret (others here can read it in `ps`)")
    parser.add_argument("-a", "--address", default="localhost", help="a node of the cluster")
    parser.add_argument("-p", "--port", type=int, default=DEFAULT_PORT, help="its port, or this one's with --head")
    given = parser.parse_args(arguments)
    try:
        if given.head:
            terminate, wait = start_head_node(given.password, given.port)
            line = "start_node -p %d -a %s -r %s" % (given.port, _own_address(), given.password)
            print("\n%s\nTo start a worker node, type:\n%s\n%s\n" % ("*" * 90, line, "*" * 90), flush=True)
        else:
            terminate, wait = start_node(given.password, given.address, given.port)
    except NodeError as error:
        print("error: %s" % error, file=sys.stderr)
        return 1
    try:
        wait()
    except KeyboardInterrupt:
        terminate()
    return 0


def _own_address() -> str:
    # Which interface leads outside; nothing is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "localhost"


if __name__ == "__main__":
    sys.exit(main())
