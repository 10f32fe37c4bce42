"""A program whose calls on three nodes are given results of theirs: says when these are there, when all are done, when it refers to none
any more, and when it has new ones. `blind`: the pool is not told where results are."""

import sys
import time

import nodectl
from nodectl import _places, futures

BYTES = 4_000_000
BLOCKS = 9
ROUNDS = 3


@nodectl.remote(cpus=1)
def block(number):
    # Long enough for calls to go to all nodes.
    time.sleep(0.4)
    return bytes([number]) * BYTES


@nodectl.remote(cpus=1)
def first(content, number):
    time.sleep(0.01)
    assert len(content) == BYTES
    return content[0] - number


def made():
    blocks = [block.remote(number) for number in range(BLOCKS)]
    futures.wait(blocks)
    return blocks


def say(what):
    print(what, flush=True)
    input()


if __name__ == "__main__":
    if "blind" in sys.argv:
        _places.near = lambda places: {}
    blocks = made()
    say("results are made")
    for _ in range(ROUNDS):
        assert futures.gather([first.remote(block, number) for number, block in enumerate(blocks)]) == [0] * BLOCKS
    say("calls are done")
    del blocks
    say("nothing is needed")
    blocks = made()
    say("others are done")
