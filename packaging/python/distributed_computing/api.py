"""The interface of `distributed_computing`, over nodectl: programs written for it run unchanged."""

from nodectl import (
    DEFAULT_PORT,
    Pool,
    WorkerInterface,
    is_client_running,
    is_server_running,
    start_head_node,
    start_node,
    start_redis,
    start_server,
)

__all__ = [
    "DEFAULT_PORT",
    "Pool",
    "WorkerInterface",
    "is_client_running",
    "is_server_running",
    "start_head_node",
    "start_node",
    "start_redis",
    "start_server",
]
