"""Optuna's own tests of storages, with its journal in a log of the cluster's; and studies of two processes at a time."""

import subprocess
import sys
import uuid

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.testing.pytest_storages import StorageTestCase

import nodectl
import nodectl.optuna

TRIALS = """
import sys, optuna, nodectl.optuna
from optuna.storages import JournalStorage
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.load_study(study_name="one", storage=JournalStorage(nodectl.optuna.JournalBackend(sys.argv[1])))
study.optimize(lambda trial: trial.suggest_float("x", -10, 10) ** 2, n_trials=15)
"""


def backend():
    return nodectl.optuna.JournalBackend("studies-" + uuid.uuid4().hex)


class TestJournalInALog(StorageTestCase):
    @pytest.fixture
    def storage(self):
        return JournalStorage(backend())


def test_two_processes_share_a_study():
    one = backend()
    study = optuna.create_study(study_name="one", storage=JournalStorage(one))
    others = [subprocess.Popen([sys.executable, "-c", TRIALS, one.log.name]) for _ in range(2)]
    assert [other.wait() for other in others] == [0, 0]
    assert sorted(trial.number for trial in study.get_trials()) == list(range(30))
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.get_trials())


def test_numbers_that_json_lacks_are_kept():
    study = optuna.create_study(storage=JournalStorage(backend()))

    def reports_nan(trial):
        trial.report(float("nan"), 0)
        return float("inf")

    study.optimize(reports_nan, n_trials=1)
    (trial,) = study.get_trials()
    assert str(trial.intermediate_values) == "{0: nan}" and trial.value == float("inf")


def test_a_log_is_read_in_the_order_in_which_it_was_written():
    log = nodectl.Log("log-" + uuid.uuid4().hex)
    assert log.read() == []
    assert [log.append(value) for value in ("a", [1, {"b": None}], None)] == [0, 1, 2]
    same = nodectl.Log(log.name)
    assert [entry.value for entry in same.read()] == ["a", [1, {"b": None}], None]
    assert same.append("more") == 3 and [entry.number for entry in log.read(2)] == [2, 3]
    for read in (log.read, lambda start: next(log.follow(start))):
        with pytest.raises(ValueError, match="no entry -1 of a log: they are counted from 0"):
            read(-1)
    for value in (float("nan"), {"a": [float("-inf")]}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.append(value)
    log.close()
    assert [entry.value for entry in same.follow(3)] == ["more"]
    with pytest.raises(nodectl.NodeError, match="closed"):
        same.append("late")
    with pytest.raises(nodectl.NodeError, match="at most 65536"):
        nodectl.Log("log-" + uuid.uuid4().hex).append("x" * 70_000)
