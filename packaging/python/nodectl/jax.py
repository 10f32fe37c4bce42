"""JAX pytrees trained with parameters that workers share.

    server = ParameterServer.connect(optimizer="adamw", rate=1e-3)
    shared = SharedTree(server, parameters)
    for x, y in data:
        loss, gradients = value_and_grad(shared.tree, x, y)
        shared.step(gradients, len(x))   # pushes, ends the clock, and waits for the new values
"""

from __future__ import annotations

from typing import Any, Dict

from ._errors import needed

try:
    import jax
except ImportError as _error:
    raise needed("nodectl.jax", "jax", _error) from None
import numpy as np

from .params import ParameterServer


class SharedTree:
    """A pytree of arrays, kept by the servers in f32 under the names of its leaves, such as `['dense']['kernel']`. The optimizer is
    that of `server`."""

    #: The newest values, as JAX arrays of the types that the leaves had.
    tree: Any

    def __init__(self, server: ParameterServer, tree: Any) -> None:
        self._server = server
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self._types = {jax.tree_util.keystr(path): np.asarray(leaf).dtype for path, leaf in leaves}
        self._load(server.register({jax.tree_util.keystr(path): np.asarray(leaf, np.float32) for path, leaf in leaves}))

    def step(self, gradients: Any, samples: int = 1) -> Any:
        """Ends a clock over so many samples, in proportion to which these gradients count; a tree like the parameters'. Returns the
        new tree."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(gradients)
        if structure != self._structure:
            raise ValueError("gradients have another structure than the parameters: %s" % structure)
        # The last layers' are computed first: they go out while others are on their way from the device.
        for path, leaf in reversed(leaves):
            self._server.push({jax.tree_util.keystr(path): np.asarray(leaf, np.float32)})
        self._server.clock(samples)
        self._load(self._server.pull())
        return self.tree

    def _load(self, values: Dict[str, Any]) -> None:
        # Copied: the next pull writes to the same memory.
        leaves = [jax.numpy.array(values[name], dtype=dtype) for name, dtype in self._types.items()]
        self.tree = jax.tree_util.tree_unflatten(self._structure, leaves)
