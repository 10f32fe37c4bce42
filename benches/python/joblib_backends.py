"""joblib's backends in one run on one machine: nodectl beside Dask, and loky for scale. Each line has the seconds of all three and
the ratio to Dask's.

    NODECTL=target/release/nodectl PYTHONPATH=packaging/python target/python-frontends/bin/python \\
        benches/python/joblib_backends.py [--trials 5]

Needs joblib, scikit-learn and distributed. The backends take turns, so that what else the machine does meets all of them.
"""

import argparse
import os
import statistics
import tempfile
import time
import warnings

import joblib
import numpy
from joblib import Parallel, delayed
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import nodectl.joblib

WORKERS, CALLS, SHARED_BYTES, SHARING = 2, 2_000, 80_000_000, 40
#: No slower than Dask.
BAR = 1.0


def search():
    X, y = load_digits(return_X_y=True)
    grid = {"gamma": [1e-4, 5e-4, 1e-3, 5e-3], "C": [0.1, 1, 10]}
    GridSearchCV(SVC(), grid, cv=5, n_jobs=WORKERS).fit(X, y)


def short_calls():
    Parallel(n_jobs=WORKERS)(delayed(abs)(number) for number in range(CALLS))


def shared_array():
    # New contents each time: none is on the nodes already.
    values = numpy.random.default_rng().random(SHARED_BYTES // 8)
    Parallel(n_jobs=WORKERS)(delayed(numpy.min)(values) for _ in range(SHARING))


def measure(backends, work, trials):
    """The seconds of each trial, by backend, after one that does not count."""
    seconds = {name: [] for name in backends}
    for trial in range(trials + 1):
        for name in backends:
            with joblib.parallel_config(name):
                began = time.perf_counter()
                work()
                if trial:
                    seconds[name].append(time.perf_counter() - began)
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    from dask.distributed import Client

    warnings.simplefilter("ignore")
    nodectl.joblib.register()
    with tempfile.TemporaryDirectory() as directory:
        # A node of its own, unless one is named.
        os.environ.setdefault("NODECTL_NODE__DATA_DIR", directory + "/node")
        os.environ.setdefault("NODECTL_NODE__CORES", str(WORKERS))
        client = Client(n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=directory)
        for what, work in (("grid search, 60 fits", search), ("%d short calls" % CALLS, short_calls), ("80 MB, 40 calls", shared_array)):
            taken = {name: statistics.median(of) for name, of in measure(("nodectl", "dask", "loky"), work, trials).items()}
            ratio = taken["nodectl"] / taken["dask"]
            told = "   ".join("%s %7.3f s" % one for one in taken.items())
            print("%-22s %s   ratio to dask %.2f, bar %.2f: %s" % (what, told, ratio, BAR, "holds" if ratio <= BAR else "MISSED"), flush=True)
        client.close()
        for workers in list(nodectl.joblib._open):
            workers.pool.close()


if __name__ == "__main__":
    main()
