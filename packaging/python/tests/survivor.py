"""A program whose nodes are killed while it maps 500 tasks: says when it is under way, and at the end whether every result is there
once and in order. The secret comes in the variable SURVIVOR_SECRET."""

import os
import time

import nodectl


class Worker:
    def __init__(self):
        self.updates = []

    def run(self, number):
        time.sleep(0.01)
        return number, list(self.updates)

    def handle_update(self, value):
        self.updates.append(value)


if __name__ == "__main__":
    with nodectl.Pool(Worker, None, os.environ.get("SURVIVOR_SECRET")) as pool:
        pool.wait_for_workers(3)
        pool.update_workers("first")
        results = []
        for result in pool.imap(range(500)):
            results.append(result)
            if len(results) % 100 == 50:
                print("at", len(results), flush=True)
        assert results == [(number, ["first"]) for number in range(500)], results
        print("ok", flush=True)
