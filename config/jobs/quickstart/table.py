"""Makes a table of the folds' results: table.py RESULTS.jsonl."""

import collections
import csv
import gzip
import json
import os
import statistics
import sys

SHADES = " .:-=+*#%@"


def load_values(path):
    with open(path) as lines:
        results = [json.loads(line) for line in lines]
    return [result["value"] for result in results if result["status"] == "done"]


def accuracies(values):
    """(metric, k) -> accuracy of each fold."""
    table = collections.defaultdict(list)
    for value in values:
        for k, accuracy in value["accuracy"].items():
            table[value["metric"], int(k)].append(accuracy)
    return table


def print_table(table):
    metrics = sorted({metric for metric, _ in table})
    print("Accuracy in percent, mean ± standard deviation over the folds\n")
    print("  k   " + "".join(f"{metric:>16}" for metric in metrics))
    for k in sorted({k for _, k in table}):
        cells = [table[metric, k] for metric in metrics]
        texts = [f"{100 * statistics.mean(cell):.2f} ± {100 * statistics.pstdev(cell):.2f}" for cell in cells]
        print(f"{k:>3}   " + "".join(f"{text:>16}" for text in texts))
    metric, k = max(table, key=lambda setting: (statistics.mean(table[setting]), -setting[1]))
    mean = 100 * statistics.mean(table[metric, k])
    print(f"\nBest: {metric} distance, k = {k}: {mean:.2f} % of the digits recognised.")


def print_hardest(values):
    """The digit that most settings got wrong, drawn."""
    guesses = collections.defaultdict(collections.Counter)
    for value in values:
        for missed in value["missed"].values():
            for miss in missed:
                guesses[miss["index"]][miss["guess"]] += 1
    if not guesses:
        return
    index = max(guesses, key=lambda index: (sum(guesses[index].values()), -index))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")
    with gzip.open(path, "rt") as lines:
        row = [int(cell) for cell in list(csv.reader(lines))[index]]
    guess, _ = guesses[index].most_common(1)[0]
    settings = sum(guesses[index].values())
    print(f"Hardest: this {row[64]} was taken for a {guess} (missed by {settings} settings):\n")
    for line in range(8):
        pixels = row[8 * line : 8 * line + 8]
        print("    " + "".join(2 * SHADES[min(pixel * len(SHADES) // 17, len(SHADES) - 1)] for pixel in pixels).rstrip())


def main():
    sys.stdout.reconfigure(encoding="utf-8")
    values = load_values(sys.argv[1])
    print_table(accuracies(values))
    print_hardest(values)


main()
