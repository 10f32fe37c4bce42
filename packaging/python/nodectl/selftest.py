"""`python -m nodectl.selftest`: shows in some seconds that pools work on this machine."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, List, Tuple

from . import Pool, PoolError
from ._node import is_running, socket_path
from ._sizes import counted

_BYTES = 1 << 20


class _Worker:
    def __init__(self) -> None:
        self.updates: List[Any] = []

    def run(self, what: str, value: Any = None) -> Any:
        if what == "square":
            return value * value
        if what == "fail":
            raise ValueError("as asked")
        if what == "updates":
            return self.updates
        return value

    def handle_update(self, value: Any) -> None:
        self.updates.append(value)


def main() -> int:
    """Runs it; 0 if everything works, else 1."""
    own = not is_running()
    print("node       %s" % ("starts one for this program" if own else "runs at %s" % socket_path()))
    began = time.monotonic()
    try:
        with Pool(_Worker, name="selftest", max_workers=os.cpu_count()) as pool:
            _check(pool, began)
    except PoolError as error:
        print("FAILED     %s" % error)
        print("hint: `nodectl doctor` says more about this machine")
        return 1
    except AssertionError as error:
        print("FAILED     %s" % error)
        return 1
    print("ok         in %.1f s" % (time.monotonic() - began))
    return 0


def _check(pool: "Pool[_Worker]", began: float) -> None:
    _expect("a first result", pool.starmap([("square", 3)]), [9])
    print("start      %.2f s to the first result" % (time.monotonic() - began))
    count, numbers = _timed(lambda count: pool.starmap(("square", i) for i in range(count)), 5000)
    _expect("5,000 results in order", numbers, [i * i for i in range(5000)])
    crew = counted(pool.get_workers_count(), "worker"), counted(pool.get_nodes_count(), "node")
    print("tasks      %d a second on %s, %s" % (count, *crew))
    data = os.urandom(_BYTES)
    count, echoes = _timed(lambda count: pool.starmap([("echo", data)] * count), 50)
    _expect("large payloads", all(echo == data for echo in echoes), True)
    print("payloads   %.0f MB a second there and back" % (count * _BYTES / 1e6))
    pool.update_workers("u")
    _expect("updates", pool.starmap([("updates",)]), [["u"]])
    try:
        pool.starmap([("fail",)])
    except ValueError as error:
        _expect("exceptions", str(error), "as asked")
    else:
        raise AssertionError("an exception of a worker did not arrive")


def _timed(work: Any, count: int) -> Tuple[float, Any]:
    began = time.monotonic()
    result = work(count)
    return count / (time.monotonic() - began), result


def _expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError("%s: %r in place of %r" % (what, found, expected))


if __name__ == "__main__":
    sys.exit(main())
