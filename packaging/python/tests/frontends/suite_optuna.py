"""Studies of Optuna's over a pool, and in a log of the cluster's: there its own tests of storages (`StorageTestCase`) have to pass."""

import importlib.util
import os

NAME = "Optuna's tests of storages, and studies over a pool"


def missing():
    return None if importlib.util.find_spec("optuna") else "no optuna"


def arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, name) for name in ("test_nodectl_optuna.py", "test_optuna_storage.py")]
