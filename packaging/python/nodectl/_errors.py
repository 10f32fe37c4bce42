"""What can go wrong with a pool or a kernel."""

from __future__ import annotations

import json
import linecache
import os
import pickle
import re
import sys
from typing import Any, Optional


class PoolError(RuntimeError):
    """A pool could not be opened, or has ended."""


class NodeError(PoolError):
    """There is no node to talk to, and none could be started."""


class RemoteError(Exception):
    """An exception of a worker that cannot be raised as what it was, for its class is not to be had here, or for the pool
    unpickles nothing (`results="json"`)."""


class RemoteTraceback(Exception):
    """The traceback on the worker, as the cause of the exception that is raised here."""

    def __init__(self, tb: str) -> None:
        super().__init__(tb)
        self.tb = tb

    def __str__(self) -> str:
        return "\n" + self.tb


class KernelError(Exception):
    """A kernel that cannot be run, or whose task failed. `line` and `column` are places in the shader, from 1, where it is the
    shader that is wrong; else None."""

    def __init__(self, message: str, line: Optional[int] = None, column: Optional[int] = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class UpdateFailed(RuntimeWarning):
    """`handle_update` raised an exception on a worker."""


def needed(by: str, module: str, error: ImportError) -> ImportError:
    """What to raise where `module`, which `by` needs, cannot be imported: with the line to type, if it is not installed."""
    if error.name is None or error.name.partition(".")[0] != module:
        return error
    python = sys.executable
    text = "%s needs %s, which %s on %s lacks\nhint: there: %s -m pip install %s"
    return ModuleNotFoundError(text % (by, module, python, os.uname().nodename, python, module), name=module)


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
    error.__cause__ = RemoteTraceback(_with_source(told["traceback"]))
    return error


_FRAME = re.compile(r'  File "(.*)", line (\d+)')


def _with_source(text: str) -> str:
    """A worker's traceback with the lines of files that are here and were not there: scripts, cells of notebooks."""
    lines = text.split("\n")
    shown = []
    for line, after in zip(lines, [*lines[1:], ""]):
        shown.append(line)
        frame = _FRAME.match(line)
        if frame and not after.startswith("    ") and (frame[1] in linecache.cache or os.path.isfile(frame[1])):
            source = linecache.getline(frame[1], int(frame[2])).strip()
            shown += ["    " + source] if source else []
    return "\n".join(shown)


def summary(payload: Any) -> str:
    """The traceback of an error's payload."""
    told = json.loads(bytes(payload).partition(b"\n")[0])
    return _with_source(told["traceback"]) or "%s: %s" % (told["type"], told["message"])
