"""A pool in nodectl's own words: pi, from random points."""

import math
import random

from nodectl import Pool


class Estimator:
    def __init__(self, samples):
        self.samples = samples

    def run(self, seed, radius=1.0):
        rng = random.Random(seed)
        inside = sum(math.hypot(rng.random() * radius, rng.random() * radius) < radius for _ in range(self.samples))
        return 4 * inside / self.samples


if __name__ == "__main__":
    with Pool(Estimator, {"args": [20_000]}) as pool:
        estimates = pool.map(range(32))
        print("pi is about %.3f, by %d workers" % (sum(estimates) / 32, pool.get_workers_count()))
        print("by another radius:", pool.submit(7, radius=3.0).result())
