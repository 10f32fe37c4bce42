"""A worker that trains alone, without a node: the optimizer's rules in numpy, as `src/pserver/optimizer.rs` has them."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Mapping, Union

import numpy as np

from .params import Arrays, Names, ParameterServer, check_factored, check_factors


class Alone(ParameterServer):
    """The parameters of one process."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        self.worker, self.workers = 0, 1
        self._training = settings["training"]
        self._values: Arrays = {}
        self._gradients: Arrays = {}
        self._pushed: set[str] = set()
        self._clock = 0

    @property
    def step(self) -> int:
        return self._clock

    def register(self, arrays: Mapping[str, Any], factored: Iterable[str] = ()) -> Arrays:
        if self._values:
            raise ValueError("parameters were registered already")
        self._factored = check_factored(arrays, factored)
        if not arrays:
            raise ValueError("there are no parameters to share")
        self._values = {name: np.array(array, dtype=np.float32) for name, array in arrays.items()}
        self._gradients = {name: np.zeros_like(value) for name, value in self._values.items()}
        self._state: Dict[str, List[Any]] = {name: [np.zeros_like(v), np.zeros_like(v)] for name, v in self._values.items()}
        return dict(self._values)

    @property
    def values(self) -> Arrays:
        return self._values

    @property
    def gradients(self) -> Arrays:
        return self._gradients

    def push(self, gradients: Union[Names, Mapping[str, Any]] = None) -> None:
        for name in list(gradients) if isinstance(gradients, Mapping) else self._listed(gradients):
            if name in self._factored:
                raise ValueError("`%s` was registered as factored: use `push_factors`" % name)
        self._push(gradients)

    def _push(self, gradients: Union[Names, Mapping[str, Any]]) -> None:
        if isinstance(gradients, Mapping):
            for name, gradient in gradients.items():
                mine = self._gradients[name]
                if np.shape(gradient) != mine.shape:
                    raise ValueError("the gradient of `%s` has shape %s, not %s" % (name, np.shape(gradient), mine.shape))
                if gradient is not mine:
                    np.copyto(mine, gradient, casting="same_kind")
            names = list(gradients)
        else:
            names = self._listed(gradients)
        for name in names:
            if name in self._pushed:
                raise ValueError("`%s` was pushed in this clock already" % name)
            self._pushed.add(name)

    def push_factors(self, name: str, rows: Any, columns: Any) -> None:
        rows, columns = check_factors(name, self._values, self._factored, rows, columns)
        self._push({name: rows.T @ columns})

    def share(self, count: int) -> range:
        return range(count)

    def clock(self, samples: int = 1) -> int:
        for name, gradient in self._gradients.items():
            if name not in self._pushed:
                gradient[...] = 0
        self._pushed.clear()
        scale = 1.0
        limit = self._training["clip_norm"]
        if limit is not None:
            norm = math.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in self._gradients.values()))
            scale = min(1.0, limit / (norm + 1e-6))
        self._clock += 1
        for name, value in self._values.items():
            self._step(value, self._gradients[name], self._state[name], np.float32(scale))
        return self._clock

    def pull(self, names: Names = None) -> Arrays:
        return {name: self._values[name] for name in self._listed(names)}

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _listed(self, names: Names) -> List[str]:
        if names is None:
            return list(self._values)
        return [names] if isinstance(names, str) else list(names)

    def _step(self, x: Any, gradient: Any, state: List[Any], scale: Any) -> None:
        training = self._training
        rate = np.float32(training["rate"] * self._factor())
        decay = np.float32(training["weight_decay"])
        rule = training["optimizer"]
        options: Dict[str, Any] = {}
        if isinstance(rule, dict):
            ((rule, options),) = rule.items()
        g = gradient * scale
        if rule == "adam_w":
            x -= rate * decay * x
        elif decay:
            g = g + decay * x
        if rule == "sgd":
            x -= rate * g
        elif rule in ("momentum", "nesterov"):
            momentum = np.float32(options["momentum"])
            state[0] *= momentum
            state[0] += g
            x -= rate * (g + momentum * state[0] if rule == "nesterov" else state[0])
        elif rule == "adagrad":
            state[0] += g * g
            x -= rate * g / (np.sqrt(state[0]) + np.float32(options["epsilon"]))
        else:
            one, two = options["betas"]
            a, b = state
            a[...] = np.float32(one) * a + np.float32(1 - one) * g
            b[...] = np.float32(two) * b + np.float32(1 - two) * g * g
            first, second = (np.float32(1 - beta**self._clock) for beta in (one, two))
            x -= rate * (a / first) / (np.sqrt(b / second) + np.float32(options["epsilon"]))

    def _factor(self) -> float:
        """`types::params::Schedule::factor`."""
        schedule = self._training["schedule"]
        step, warmup = self._clock, schedule["warmup_steps"]
        if step <= warmup:
            return float(step / warmup)
        kind = schedule["decay"]
        options: Dict[str, Any] = {}
        if isinstance(kind, dict):
            ((kind, options),) = kind.items()
        if kind == "constant":
            return 1.0
        steps = options["steps"]
        if kind == "step":
            return float(options["factor"] ** ((step - warmup - 1) // max(steps, 1)))
        done = min((step - warmup - 1) / max(steps - warmup - 1, 1), 1.0)
        floor = options["floor"]
        if kind == "linear":
            return float(1 - (1 - floor) * done)
        return float(floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)
