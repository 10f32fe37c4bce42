"""PyTorch models trained with parameters that workers share.

    server = ParameterServer.connect(optimizer="adamw", rate=1e-3)
    optimizer = DistributedOptimizer(model, server)
    for x, y in data:
        loss = criterion(model(x), y)
        loss.backward()          # gradients go out as they become ready, the last layers' first
        optimizer.step(len(x))   # ends the clock, and waits for the new values
        optimizer.zero_grad()
"""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from .params import ParameterServer


class DistributedOptimizer:
    """Takes the place of an optimizer: the rule is that of `server`, and runs where the parameters are kept.

    On the CPU the parameters lie in the memory shared with the node from then on; gradients are copied there once, as they become
    ready. Those of other devices are copied there and back. Parameters in half precision are kept in f32 by the servers.
    """

    def __init__(self, model: "torch.nn.Module", server: ParameterServer) -> None:
        self._server = server
        self._parameters: Dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        initial = {name: p.detach().cpu().float().numpy() for name, p in self._parameters.items()}
        values = server.register(initial)
        self._values = {name: torch.from_numpy(array) for name, array in values.items()}
        self._gradients = {name: torch.from_numpy(server.gradients[name]) for name in initial}
        self._shared = {name for name, p in self._parameters.items() if p.device.type == "cpu" and p.dtype == torch.float32}
        self._pushed: List[str] = []
        for name, parameter in self._parameters.items():
            if name in self._shared:
                parameter.data = self._values[name]
            parameter.register_post_accumulate_grad_hook(self._hook(name))
        self._load()

    def step(self, samples: int = 1) -> None:
        """Ends the clock over so many samples, in proportion to which this worker's gradients count, and waits for new values."""
        self._server.clock(samples)
        self._pushed.clear()
        self._server.pull()
        self._load()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def _hook(self, name: str) -> Any:
        def ready(parameter: Any) -> None:
            if name in self._pushed:
                raise RuntimeError("`%s` got a second gradient before `step`: gradients are not accumulated" % name)
            if not self._pushed:
                # The last clock's gradients may still be on their way.
                self._server.push([])
            self._gradients[name].copy_(parameter.grad)
            self._pushed.append(name)
            self._server.push(name)

        return ready

    def _load(self) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if name not in self._shared:
                    parameter.copy_(self._values[name])
