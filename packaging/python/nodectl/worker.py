"""The interface of workers."""

from __future__ import annotations

from typing import Any


class WorkerInterface:
    """What a worker class has. Deriving from it is optional."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """One task, with the arguments of its item. What it returns is the task's result."""
        raise NotImplementedError("the worker class has no method run")

    def handle_update(self, *args: Any, **kwargs: Any) -> None:
        """An update, between tasks."""
        raise NotImplementedError("the worker class has no method handle_update")


# Workers find it under this name also where only the stand-in of a node is there.
WorkerInterface.__module__ = "nodectl"
