"""One fold of a cross-validated nearest-neighbour classifier: knn.py METRIC FOLD.

Neighbours are sorted once and counted for every k. Prints the accuracy for each, and the digits that were missed.
"""

import csv
import gzip
import heapq
import json
import math
import os
import sys

FOLDS = 5
NEIGHBOURS = [1, 3, 5, 7, 9, 15]


def unit(vector):
    """The vector at length 1: then Euclidean distance orders as the angle does."""
    length = math.hypot(*vector)
    return [x / length for x in vector]


# Each metric is the Euclidean distance between transformed images, which `math.dist` computes fast.
TRANSFORMS = {
    "euclidean": list,
    "cosine": unit,
    "hellinger": lambda vector: unit([math.sqrt(x) for x in vector]),
}


def load(transform):
    """(image, digit) of every line: 64 grey values, then the digit."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")
    with gzip.open(path, "rt") as lines:
        rows = [[int(cell) for cell in row] for row in csv.reader(lines)]
    return [(transform(row[:-1]), row[-1]) for row in rows]


def vote(neighbours):
    """The commonest digit; of equally common ones that of the nearest."""
    digits = [digit for _, digit in neighbours]
    return max(digits, key=digits.count)


def main():
    metric, fold = sys.argv[1], int(sys.argv[2])
    samples = load(TRANSFORMS[metric])
    known = [sample for index, sample in enumerate(samples) if index % FOLDS != fold]
    asked = range(fold, len(samples), FOLDS)
    missed = {k: [] for k in NEIGHBOURS}
    for index in asked:
        image, digit = samples[index]
        distances = ((math.dist(image, other), label) for other, label in known)
        nearest = heapq.nsmallest(NEIGHBOURS[-1], distances)
        for k in NEIGHBOURS:
            guess = vote(nearest[:k])
            if guess != digit:
                missed[k].append({"index": index, "guess": guess})
    accuracy = {k: 1 - len(missed[k]) / len(asked) for k in NEIGHBOURS}
    print("nodectl-result:", json.dumps({"metric": metric, "fold": fold, "accuracy": accuracy, "missed": missed}))


main()
