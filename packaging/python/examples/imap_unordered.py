"""`imap_unordered` of distributed_computing: each result goes to all workers, which keep a cache of them."""

import math
import random

from distributed_computing.api import WorkerInterface

# What the description leaves open: a network of one neuron that learns on which side of a line points lie.

dataset, network, cache = [], [], {}


def download_dataset():
    rng = random.Random(7)
    dataset.extend((rng.uniform(-1, 1), rng.uniform(-1, 1)) for _ in range(400))


def preprocess_dataset():
    dataset[:] = [((x, y, 1.0), x + 2 * y > 0.3) for x, y in dataset]


def do_heavy_work():
    random.Random(7).shuffle(dataset)


def probability(point):
    return 1 / (1 + math.exp(-sum(weight * value for weight, value in zip(network, point))))


def train_network(learning_rate, epochs):
    network[:] = [0.0, 0.0, 0.0]
    for _ in range(epochs):
        for point, label in dataset[:300]:
            error = label - probability(point)
            network[:] = [weight + learning_rate * error * value for weight, value in zip(network, point)]


def evaluate_network(threshold):
    right = sum((probability(point) > (threshold or 0.5)) == label for point, label in dataset[300:])
    return right / 100


def update_cache(accuracy):
    cache[accuracy] = cache.get(accuracy, 0) + 1


init_data = "points"
parameter_sets = [
    {"args": [rate, epochs], "kwargs": {"parameter_3": threshold}}
    for rate in (0.01, 0.1, 1.0)
    for epochs in (1, 3, 10)
    for threshold in (0.5, 0.6)
]

# From here on, the description's own words.


class WorkerClass(WorkerInterface):
    def __init__(self, init_data):
        # Heavy preparation work is done here (once for each worker)
        download_dataset()
        preprocess_dataset()
        do_heavy_work()
    
    def run(parameter_1, parameter_2, parameter_3=None):
        # The worker is done here
        train_network(parameter_1, parameter_2)
        result = evaluate_network(parameter_3)
        
        return result

    def handle_update(self, cache_update):
        # Handle updates sent by the pool owner
        update_cache(cache_update)


from distributed_computing.api import Pool

results = []

with Pool(WorkerClass, {'args': [init_data]}, '123456', '194.173.121.37') as p:
    for result in p.imap_unordered(parameter_sets):
        results.append(result)
        p.update_workers(result)


print("%d results, the best %.2f" % (len(results), max(results)))
