"""scikit-learn on nodes of which one is killed: says when it is under way, and at the end whether all is as on one machine alone."""

import threading
import time

import joblib
import numpy
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC

import nodectl.joblib

NODES = 3
# So that arrays of this size travel as large ones do.
SHIPPED_BYTES = 100_000


class Slow(SVC):
    """Takes its time, so that there is some for a node to die in."""

    def fit(self, X, y):
        time.sleep(0.2)
        return super().fit(X, y)


def tell():
    """Says that it is under way when all nodes have a worker."""
    while not nodectl.joblib._open:
        time.sleep(0.02)
    pool = nodectl.joblib._open[0].pool
    assert pool.wait_for_workers(NODES, 120)
    print("at work on %d nodes" % pool.get_nodes_count(), flush=True)


def main():
    X, y = load_digits(return_X_y=True)
    X, y = X[:900], y[:900]
    grid = {"C": [0.1, 1, 10], "gamma": [1e-4, 1e-3, 1e-2]}
    nodectl.joblib.register()
    with joblib.parallel_config("nodectl", cpus=1):
        workers = threading.Thread(target=tell)
        workers.start()
        joblib.Parallel(max_nbytes=SHIPPED_BYTES)(joblib.delayed(time.sleep)(0.1) for _ in range(12))
        workers.join()
        search = GridSearchCV(Slow(), grid, cv=5, n_jobs=-1).fit(X, y)
        scores = cross_val_score(Slow(C=10), X, y, cv=6, n_jobs=-1)
        # The same array in 30 calls.
        sums = joblib.Parallel(max_nbytes=SHIPPED_BYTES)(joblib.delayed(numpy.sum)(X) for _ in range(30))
    alone = GridSearchCV(SVC(), grid, cv=5).fit(X, y)
    assert (search.cv_results_["mean_test_score"] == alone.cv_results_["mean_test_score"]).all()
    assert search.best_params_ == alone.best_params_
    assert (scores == cross_val_score(SVC(C=10), X, y, cv=6)).all()
    assert sums == [numpy.sum(X)] * 30
    print("ok", flush=True)


if __name__ == "__main__":
    main()
