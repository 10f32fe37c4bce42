"""A program whose calls are on three nodes, of which one dies while results of calls lie there, and a value that they were given: says when,
and at the end whether all came out right."""

import concurrent.futures
import os
import time

import nodectl
from nodectl import futures


@nodectl.remote(cpus=1)
def block(number, value):
    # Long enough for calls to go to all nodes.
    time.sleep(0.5)
    return os.environ["NODECTL_TASK_DIR"].partition("/jobs/")[0], bytes([number]) * len(value)


@nodectl.remote(cpus=1)
def size(*blocks):
    return sum(len(content) for _, content in blocks)


if __name__ == "__main__":
    value = futures.scatter(bytes(100_000))
    blocks = [block.remote(number, value) for number in range(9)]
    del value
    futures.wait(blocks)
    assert len({concurrent.futures.Future.result(block).origin for block in blocks}) == 3
    print("calls are done", flush=True)
    input()
    assert size.remote(*blocks).result() == 900_000
    # What lay on the third was computed again.
    nodes = {node for node, _ in futures.gather(blocks)}
    print("done on %d nodes" % len(nodes), flush=True)
