"""PyTorch models trained with parameters that workers share.

    server = ParameterServer.connect(optimizer="adamw", rate=1e-3)
    optimizer = DistributedOptimizer(model, server)
    for x, y in data:
        loss = criterion(model(x), y)
        loss.backward()          # gradients go out as they become ready, the last layers' first
        optimizer.step(len(x))   # ends the clock, and waits for the new values
        optimizer.zero_grad()

With `ParameterServer.connect(…, use_sfb=True)`, or under `psd-run --use-sfb`, and `DistributedOptimizer(model, server, batch=64)`, gradients
of dense layers travel as sufficient factors, from each worker to every node, where those of 64 samples are less than the gradient.

Or each worker takes steps by itself, with an optimizer of PyTorch's, and the servers take an outer step with the average of what they
came to (DiLoCo, Douillard et al., arXiv 2311.08105): little goes over the network.

    server = ParameterServer.connect(optimizer="nesterov", rate=0.7, momentum=0.9, consistency="local", local_steps=50)
    optimizer = LocalOptimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3), server, steps=50)
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from ._errors import needed

try:
    import torch
except ImportError as _error:
    raise needed("nodectl.torch", "torch", _error) from None

from .params import _ALIGNMENT, ParameterServer


class DistributedOptimizer:
    """Takes the place of an optimizer: the rule is that of `server`, and runs where the parameters are kept. Needs PyTorch 2.1.

    On the CPU the parameters lie in the memory shared with the node from then on; gradients are copied there once, as they become
    ready. Those of other devices are copied there and back. Parameters in half precision are kept in f32 by the servers.

    batch: the most samples of a step on any worker. Where `server.use_sfb`, each `torch.nn.Linear` whose sufficient factors of so many
    samples take less room than its weight's gradient pushes those. A layer that is called with more dimensions (of a sequence, say) has
    as many samples as rows: `batch` counts these then.
    """

    def __init__(self, model: "torch.nn.Module", server: ParameterServer, batch: Optional[int] = None) -> None:
        if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            raise RuntimeError("DistributedOptimizer needs PyTorch 2.1 or later, and this is %s" % torch.__version__)
        self._server = server
        self._parameters: Dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        initial = {name: p.detach().cpu().float().numpy() for name, p in self._parameters.items()}
        #: Of each factored weight what came back to its layer's outputs, and what went into it.
        self._factors: Dict[str, List[Tuple[Any, Any]]] = {}
        if server.use_sfb and batch is not None:
            for name, layer in self._dense_layers(model, batch).items():
                self._factors[name] = []
                layer.register_forward_hook(self._watch(name))
        values = server.register(initial, factored=self._factors)
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
            self._pushed.append(name)
            if name in self._factors:
                self._push_factors(name, parameter.grad)
            else:
                self._gradients[name].copy_(parameter.grad)
                self._server.push(name)

        return ready

    def _dense_layers(self, model: "torch.nn.Module", batch: int) -> "Dict[str, torch.nn.Linear]":
        """Those whose weight's gradient is more than its factors, by the weight's name."""
        layers = {}
        for name, weight in self._parameters.items():
            owners = [module for module in model.modules() if any(p is weight for p in module.parameters(recurse=False))]
            if len(owners) == 1 and type(owners[0]) is torch.nn.Linear and owners[0].weight is weight:
                if _ALIGNMENT + batch * sum(weight.shape) <= weight.numel():
                    layers[name] = owners[0]
        return layers

    def _watch(self, name: str) -> Any:
        def called(layer: Any, inputs: Any, output: Any) -> None:
            if output.requires_grad:
                into = inputs[0].detach().reshape(-1, layer.in_features)
                # Of every call, each time a gradient comes back to it, which is before the weight's own is ready.
                output.register_hook(lambda back: self._factors[name].append((back.detach().reshape(-1, layer.out_features), into)))

        return called

    def _push_factors(self, name: str, gradient: Any) -> None:
        pairs, self._factors[name] = self._factors[name], []
        rows, columns = (torch.cat([pair[side] for pair in pairs]).float() for side in (0, 1))
        # Beside a vector, which costs little: a weight that is used beside its layer has a gradient of which these are a part only.
        probe = torch.ones(columns.shape[1], device=columns.device)
        theirs, ours = gradient.float() @ probe, rows.T @ (columns @ probe)
        if not torch.allclose(theirs, ours, rtol=0.05, atol=0.05 * float(theirs.abs().max()) + 1e-6):
            raise RuntimeError("`%s` is used by other means than its layer: train without `use_sfb`" % name)
        self._server.push_factors(name, rows.cpu().numpy(), columns.cpu().numpy())

    def _load(self) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if name not in self._shared:
                    parameter.copy_(self._values[name])


class LocalOptimizer:
    """Wraps `optimizer`, which takes the steps of this worker. Each `steps` of them end a clock: what the parameters have moved by is
    pushed, backwards, as a gradient; the new values are those that the servers made of all workers' moves."""

    def __init__(self, model: "torch.nn.Module", optimizer: "torch.optim.Optimizer", server: ParameterServer, steps: int) -> None:
        if steps < 1:
            raise ValueError("steps=%r: a clock has at least one step" % steps)
        self._server, self._optimizer, self._steps = server, optimizer, steps
        self._parameters: Dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._taken = self._samples = 0
        server.register({name: p.detach().cpu().float().numpy() for name, p in self._parameters.items()})
        self._load()

    def step(self, samples: int = 1) -> None:
        """A step over so many samples; the last of a clock waits for new values."""
        self._optimizer.step()
        self._taken += 1
        self._samples += samples
        if self._taken == self._steps:
            values = self._server.values
            self._server.push({name: values[name] - p.detach().cpu().float().numpy() for name, p in self._parameters.items()})
            self._server.clock(self._samples)
            self._server.pull()
            self._load()
            self._taken = self._samples = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)

    def _load(self) -> None:
        values = self._server.values
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(values[name]))
