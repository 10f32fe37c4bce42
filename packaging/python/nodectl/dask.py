"""dask's graphs as jobs of the cluster.

    import dask.array, nodectl.dask

    x = dask.array.arange(1_000_000, chunks=100_000)
    print((x % 7).sum().compute(scheduler=nodectl.dask.get))

Every task of dask's graph is a task of one job, a process of its own: what passes from one to the next stays on the nodes, and nothing of
it comes through this program. For many short tasks, `scheduler=nodectl.Executor()` is faster. Nodes need dask, and what it computes with.
"""

from __future__ import annotations

from typing import Any, Dict, Hashable, List, Mapping

from ._errors import needed
from .graph import Call, Graph

try:
    from dask._task_spec import convert_legacy_graph
    from dask.core import flatten
    from dask.order import order
except ImportError as _error:
    raise needed("nodectl.dask", "dask", _error) from None


def get(dsk: Any, keys: Any, **options: Any) -> Any:
    """Computes keys of a graph, as dask asks of its schedulers. `options` are those of `nodectl.Graph`; others are dask's, and of no
    meaning here."""
    known = ("name", "python", "sources", "cpus", "memory", "gpus", "where", "retries", "timeout")
    graph = Graph(**{name: options[name] for name in known if name in options})
    nodes = convert_legacy_graph(dict(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()))
    calls: Dict[Hashable, Call] = {}
    places = order(nodes)
    for key in sorted(nodes, key=places.__getitem__):
        node = nodes[key]
        calls[key] = graph.call(node, {needed_key: calls[needed_key] for needed_key in node.dependencies})
    wanted: List[Any] = list(flatten(keys)) if isinstance(keys, list) else [keys]  # type: ignore[no-untyped-call, unused-ignore]
    found = graph.run(*[calls[key] for key in wanted])
    results = dict(zip(wanted, [found] if len(wanted) == 1 else found))
    return _nested(keys, results)


def _nested(keys: Any, results: Dict[Hashable, Any]) -> Any:
    return tuple(_nested(key, results) for key in keys) if isinstance(keys, list) else results[keys]
