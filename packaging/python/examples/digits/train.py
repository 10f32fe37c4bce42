"""Softmax regression on handwritten digits, by stochastic gradient descent; trained on one part, judged by another.

Reads its parameters from params.json, reports the accuracy after each epoch, and gives the last one as its result.
"""

import csv
import gzip
import json
import math
import random
from operator import mul

EPOCHS = 9
TRAINING = 1297
JUDGED = 500


def load():
    """(64 grey values from 0 to 1 and a constant, digit) of every line."""
    with gzip.open("digits.csv.gz", "rt") as lines:
        rows = [[int(cell) for cell in row] for row in csv.reader(lines)]
    return [([grey / 16 for grey in row[:-1]] + [1.0], row[-1]) for row in rows]


def scores(weights, image):
    return [sum(map(mul, row, image)) for row in weights]


def probabilities(weights, image):
    raw = scores(weights, image)
    top = max(raw)
    powers = [math.exp(score - top) for score in raw]
    total = sum(powers)
    return [power / total for power in powers]


def accuracy(weights, digits):
    def guess(image):
        raw = scores(weights, image)
        return raw.index(max(raw))

    return sum(guess(image) == digit for image, digit in digits) / len(digits)


def epoch(weights, digits, lr, decay, batch):
    """One pass over the digits: the mean gradient of each batch, and weight decay."""
    for start in range(0, len(digits), batch):
        part = digits[start : start + batch]
        gradient = [[decay * weight for weight in row] for row in weights]
        for image, digit in part:
            for number, probability in enumerate(probabilities(weights, image)):
                slope = (probability - (number == digit)) / len(part)
                gradient[number] = [sum_ + slope * grey for sum_, grey in zip(gradient[number], image)]
        weights = [[w - lr * g for w, g in zip(row, slopes)] for row, slopes in zip(weights, gradient)]
    return weights


def main():
    with open("params.json") as file:
        params = json.load(file)
    digits = load()
    # The same split and order for every task: they differ by their parameters alone.
    shuffle = random.Random(0)
    shuffle.shuffle(digits)
    training, judged = digits[:TRAINING], digits[TRAINING : TRAINING + JUDGED]
    weights = [[0.0] * 65 for _ in range(10)]
    for step in range(1, EPOCHS + 1):
        shuffle.shuffle(training)
        weights = epoch(weights, training, params["lr"], params["decay"], params["batch"])
        reached = accuracy(weights, judged)
        print("nodectl-metric:", json.dumps({"step": step, "accuracy": reached}), flush=True)
    print("nodectl-result:", json.dumps({"accuracy": reached, "epochs": EPOCHS}))


main()
