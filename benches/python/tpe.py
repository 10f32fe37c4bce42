"""How far from the least value the best of some tasks is, where Optuna's TPESampler draws their
parameters: the functions of `src/logic/tpe/tests.rs`, whose test `compared` prints nodectl's line.

    pip install optuna
    python tpe.py [TASKS [SEEDS]]
"""

import math
import statistics
import sys

import optuna

HEIGHTS = [1.0, 1.2, 3.0, 3.2]
WIDTHS = [
    [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
    [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
    [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
    [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
]
CENTRES = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]


def branin(trial):
    x, y = trial.suggest_float("x0", -5, 10), trial.suggest_float("x1", 0, 15)
    curve = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann(trial):
    x = [trial.suggest_float(f"x{at}", 0, 1) for at in range(6)]
    parts = [
        sum(width * (number - centre) ** 2 for width, number, centre in zip(widths, x, centres))
        for widths, centres in zip(WIDTHS, CENTRES)
    ]
    return -sum(height * math.exp(-part) for height, part in zip(HEIGHTS, parts))


def mixed(trial):
    rate = (math.log10(trial.suggest_float("x0", 1e-6, 1, log=True)) + 2.5) ** 2
    layers = abs(trial.suggest_int("x1", 1, 12) - 4) / 2
    width = (math.log2(trial.suggest_int("x2", 4, 1024, log=True)) - 6) ** 2 / 4
    kinds = {"sgd": 0.8, "adam": 0.0, "adagrad": 1.5, "rmsprop": 0.4}
    return rate + layers + width + kinds[trial.suggest_categorical("x3", list(kinds))]


def best(function, sampler, tasks):
    study = optuna.create_study(sampler=sampler)
    study.optimize(function, n_trials=tasks)
    return study.best_value


def main(tasks=100, seeds=30):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = [
        ("random", lambda seed: optuna.samplers.RandomSampler(seed=seed)),
        ("TPE", lambda seed: optuna.samplers.TPESampler(seed=seed)),
        ("TPE, independent", lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=False)),
    ]
    print(f"Optuna {optuna.__version__}, {tasks} tasks, median of {seeds} seeds")
    for name, function, least in [
        ("Branin", branin, 0.397887),
        ("Hartmann 6", hartmann, -3.32237),
        ("mixed", mixed, 0.0),
    ]:
        for title, sampler in samplers:
            found = [best(function, sampler(seed), tasks) - least for seed in range(seeds)]
            print(f"{name}: {title} {statistics.median(found):.4f}", flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
