"""Errors that are those of a `concurrent.futures.ProcessPoolExecutor` as well. Loaded when one is raised or asked for: what they
are derived from takes as long to import as all the rest of the package."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from ._errors import PoolError


class PoolBroken(PoolError, BrokenProcessPool):
    """A pool has ended by itself: its class or its initializer fails on every worker, or its job was cancelled."""


class WorkerLost(PoolError, BrokenProcessPool):
    """A task ended its workers too often, and is not tried again. The pool goes on."""
