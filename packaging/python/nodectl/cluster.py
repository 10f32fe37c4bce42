"""Nodes started from Python, under the names of `distributed_computing`."""

from __future__ import annotations

import sys
from typing import Callable, Dict, List, Optional, Tuple

from . import _node
from ._errors import NodeError
from ._node import DEFAULT_PORT

Terminate = Callable[[], None]
Wait = Callable[[], None]


def start_node(
    password: Optional[str], address: str = "localhost", port: int = DEFAULT_PORT, violent_exit: bool = True
) -> Tuple[Terminate, Wait]:
    """Makes this machine a node whose resources pools use. Does nothing where one runs already. The node leaves when this
    program ends.

    :param password: The cluster's secret; None for the one that this machine made earlier or makes now.
    :param address: A node of the cluster, if it is not discovered by itself.
    :param port: The port of that node.
    :param violent_exit: Taken for compatibility: the node always ends with this program.
    :returns: a function that terminates the node, and a function that waits for it to end.
    :raises NodeError: The node could not be started.
    """
    if address in _node._LOCAL:
        return _start(password, [], {})
    peer = "%s:%d" % (_node._bracketed(address), port)
    was_running = _node.is_running()
    started = _start(password, ["--peer", peer], {})
    if not was_running and not _node.meets_others(_node.socket_path()):
        what = "warning: no node was found at %s so far: none runs there, or it has another password; this one goes on looking"
        print(what % peer, file=sys.stderr, flush=True)
    return started


def start_server(password: Optional[str], port: int = DEFAULT_PORT) -> Tuple[Terminate, Wait]:
    """Makes this machine a node that does no work itself, listening on this port. Returns and raises as `start_node`."""
    return _start(password, ["--port", str(port)], {"NODECTL_NODE__TAKES_WORK": "false"})


def start_head_node(password: Optional[str], port: int = DEFAULT_PORT) -> Tuple[Terminate, Wait]:
    """Makes this machine a node that works and listens on this port. Returns and raises as `start_node`. There is no head in the
    cluster: any node may go."""
    return _start(password, ["--port", str(port)], {})


def start_redis(password: Optional[str]) -> None:
    """Says that there is nothing to start: no database is needed."""
    print("nodectl needs no redis server; nothing was started")


def is_server_running() -> bool:
    """Whether a node answers on this machine. Every node serves pools."""
    return _node.is_running()


def is_client_running() -> bool:
    """Whether a node runs on this machine."""
    return _node.is_running()


def _start(password: Optional[str], arguments: List[str], settings: Dict[str, str]) -> Tuple[Terminate, Wait]:
    if _node.is_running():
        print("a node is running already on this machine")
        return (lambda: None), (lambda: None)
    secret = None if password is None else str(password)
    node = _node.NodeProcess(["join", "--allow-root", "--while-stdin", *arguments], secret, settings)
    if not node.greeting:
        raise NodeError("the node ended at once: %s" % node.failure())
    return node.stop, node.wait
