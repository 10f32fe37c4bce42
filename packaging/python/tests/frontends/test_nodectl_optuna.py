"""What `nodectl.optuna.optimize` promises: trials as those of `study.optimize`, chosen and kept in this program."""

import os
import signal

import nodectl
import nodectl.optuna
import optuna
import pytest
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)


def optimize(study, objective, n_trials=8, **options):
    nodectl.optuna.optimize(study, objective, n_trials, **{"n_jobs": 2, "cpus": 0.5, **options})


def states(study):
    return [one.state for one in study.trials]


def branches(trial):
    if trial.suggest_categorical("kind", ["line", "curve"]) == "line":
        return trial.suggest_float("slope", 0.1, 10, log=True)
    return trial.suggest_int("degree", 1, 5) * trial.suggest_float("weight", 0, 1, step=0.25)


def test_parameters_are_the_samplers_also_where_some_depend_on_others():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    optimize(study, branches, 20)
    assert states(study) == [TrialState.COMPLETE] * 20
    for trial in study.trials:
        expected = {"kind", "slope"} if trial.params["kind"] == "line" else {"kind", "degree", "weight"}
        assert trial.params.keys() == expected
        assert trial.value == branches(optuna.trial.FixedTrial(trial.params))
    assert len({trial.params.get("slope") for trial in study.trials}) > 3


def grid(trial):
    return trial.suggest_int("x", 0, 3) + trial.suggest_int("y", 0, 2)


def test_a_grid_is_covered_once_though_trials_run_at_the_same_time():
    sampler = optuna.samplers.GridSampler({"x": [0, 1, 2, 3], "y": [0, 1, 2]})
    study = optuna.create_study(sampler=sampler)
    optimize(study, grid, 12)
    assert sorted((one.params["x"], one.params["y"]) for one in study.trials) == [(x, y) for x in range(4) for y in range(3)]


def slow_descent(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(4):
        # The later ones are worse.
        trial.report(x + trial.number, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x


def test_pruners_know_other_trials_and_what_was_reported_stays():
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    optimize(study, slow_descent, 16, n_jobs=1)
    assert states(study)[:3] == [TrialState.COMPLETE] * 3
    assert states(study).count(TrialState.PRUNED) > 8
    assert all(one.intermediate_values[0] == one.params["x"] + one.number for one in study.trials)


def test_halving_works_across_workers():
    study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2))
    optimize(study, slow_descent, 12)
    assert {TrialState.PRUNED, TrialState.COMPLETE} <= set(states(study))
    assert any("completed_rung_0" in one.system_attrs for one in study.trials)


def noted(trial):
    trial.set_user_attr("where", os.getpid())
    return trial.suggest_float("x", 0, 1), 1.0


def test_several_objectives_and_notes():
    study = optuna.create_study(directions=["minimize", "maximize"])
    optimize(study, noted)
    assert all(len(one.values) == 2 and one.user_attrs["where"] != os.getpid() for one in study.trials)


def fails(trial):
    if trial.suggest_int("x", 0, 1) == 1:
        raise ZeroDivisionError("x is 1")
    return 0.0


def test_failures_are_raised_unless_they_are_caught():
    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"x": [0, 1]}))
    optimize(study, fails, 2, catch=ZeroDivisionError)
    assert sorted(states(study)) == [TrialState.COMPLETE, TrialState.FAIL]
    study = optuna.create_study()
    study.enqueue_trial({"x": 1})
    with pytest.raises(ZeroDivisionError, match="x is 1"):
        optimize(study, fails)
    assert TrialState.FAIL in states(study) and TrialState.RUNNING not in states(study)


def test_callbacks_are_called_and_can_end_it():
    seen, study = [], optuna.create_study()

    def stop_at_four(study, trial):
        seen.append(trial.number)
        if len(seen) == 4:
            study.stop()

    optimize(study, grid, None, callbacks=[stop_at_four])
    assert 4 <= len(study.trials) <= 6 and len(seen) == len(study.trials)


def dies_once(trial):
    x = trial.suggest_float("x", 0, 1)
    try:
        os.close(os.open(os.environ["DIED"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return x
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_costs_an_attempt_and_no_trial(tmp_path):
    study = optuna.create_study()
    optimize(study, dies_once, env={"DIED": str(tmp_path / "died")})
    assert states(study) == [TrialState.COMPLETE] * 8
    assert all(one.value == one.params["x"] for one in study.trials)


def test_a_study_goes_on_from_its_storage(tmp_path):
    url = "sqlite:///%s" % (tmp_path / "study.db")
    optimize(optuna.create_study(storage=url, study_name="s"), grid, 4)
    study = optuna.load_study(storage=url, study_name="s")
    optimize(study, grid, 4)
    assert [one.number for one in study.trials] == list(range(8))
    assert states(study) == [TrialState.COMPLETE] * 8
