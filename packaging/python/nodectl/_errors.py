"""What can go wrong with a pool or a kernel."""

from __future__ import annotations

import concurrent.futures
import json
import pickle
from typing import Any, Optional


class PoolError(RuntimeError):
    """A pool could not be opened, or has ended."""


class NodeError(PoolError):
    """There is no node to talk to, and none could be started."""


class WorkerLost(PoolError, concurrent.futures.BrokenExecutor):
    """A task ended its workers too often, and is not tried again."""


class RemoteError(Exception):
    """An exception of a worker that cannot be raised as what it was, for its class is not to be had here, or for the pool
    unpickles nothing (`results="json"`)."""


class RemoteTraceback(Exception):
    """The traceback on the worker, as the cause of the exception that is raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class KernelError(Exception):
    """A kernel that cannot be run, or whose task failed. `line` and `column` are places in the shader, from 1, where it is the
    shader that is wrong; else None."""

    def __init__(self, message: str, line: Optional[int] = None, column: Optional[int] = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class UpdateFailed(RuntimeWarning):
    """`handle_update` raised an exception on a worker."""


def from_payload(payload: Any, unpickle: bool = True) -> BaseException:
    """The exception of a FAILED frame: a line of JSON, then perhaps the pickled exception."""
    line, _, pickled = bytes(payload).partition(b"\n")
    told = json.loads(line)
    error: Optional[BaseException] = None
    if pickled and unpickle:
        try:
            error = pickle.loads(pickled)
        except Exception:
            error = None
    if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)) or not isinstance(error, BaseException):
        # Nobody here asked for an end.
        error = RemoteError("%s: %s" % (told["type"], told["message"]))
    error.__cause__ = RemoteTraceback(told["traceback"])
    return error


def summary(payload: Any) -> str:
    """The traceback of an error's payload."""
    told = json.loads(bytes(payload).partition(b"\n")[0])
    return str(told["traceback"] or "%s: %s" % (told["type"], told["message"]))
