"""Studies of Optuna's over a pool. Optuna's own tests are of its parts (`StorageTestCase` of storages), none of which is replaced
here."""

import importlib.util
import os

NAME = "studies of Optuna's over a pool"


def missing():
    return None if importlib.util.find_spec("optuna") else "no optuna"


def arguments():
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_nodectl_optuna.py")]
