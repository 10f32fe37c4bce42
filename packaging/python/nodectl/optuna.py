"""Optuna's studies on the machines of the lab: `study.optimize` with the trials of a study on a pool's workers.

    import optuna, nodectl.optuna

    def objective(trial):
        x = trial.suggest_float("x", -10, 10)
        return (x - 2) ** 2

    study = optuna.create_study()
    nodectl.optuna.optimize(study, objective, n_trials=100)

The study stays in this program, with whatever sampler, pruner and storage it has: parameters are chosen here, when a worker is
free, with all that is known by then. Nodes need optuna, and what the objective imports.

Studies of several programs, which outlive each of them and each node, are in a log that the cluster keeps:

    storage = optuna.storages.JournalStorage(nodectl.optuna.JournalBackend("my-studies"))
    study = optuna.create_study(storage=storage, study_name="fit", load_if_exists=True)
"""

from __future__ import annotations

import json
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type, Union

from ._errors import needed
from ._trials import Trials
from .log import Entry, Log
from .pool import Pool

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages.journal import BaseJournalBackend
    from optuna.trial import FrozenTrial, Trial, TrialState
except ImportError as _error:
    raise needed("nodectl.optuna", "optuna", _error) from None

Callback = Callable[[Any, FrozenTrial], None]
#: Names and values of parameters, in the order in which a trial asked for them; no values of those that are `float`.
Told = Tuple[Tuple[str, Any], ...]
# How often it is asked whether there are more workers, or the time is over.
_LOOK_SECONDS = 0.5


class JournalBackend(BaseJournalBackend):
    """Where `optuna.storages.JournalStorage` keeps studies: a log of this name, of which several nodes have copies (`nodectl.Log`).

    Programs on all machines of the cluster may use it at a time; nothing else is needed that they reach, such as a database or a
    common file system.

    :param name: Of the log. Studies of one log are together: each program that uses one of them reads all.
    """

    def __init__(self, name: str) -> None:
        self.log: Log = Log(name)
        # Where the logs that were read last end: their number, and that of the next entry.
        self._read = (0, 0)

    def append_logs(self, logs: List[Dict[str, Any]]) -> None:
        """Appends them, all or none."""
        # Trials come to infinities, and report NaN, and only this class reads them.
        self.log._append(json.dumps(logs))

    def read_logs(self, log_number_from: int) -> List[Dict[str, Any]]:
        """The logs from this number on."""
        number, start = self._read if self._read[0] <= log_number_from else (0, 0)
        entries: List[Entry] = self.log.read(start)
        logs = [one for entry in entries for one in entry.value]
        if entries:
            self._read = number + len(logs), entries[-1].number + 1
        return logs[log_number_from - number :]

    def __reduce__(self) -> Any:
        return JournalBackend, (self.log.name,)


def optimize(
    study: Any,
    objective: Callable[[Any], Union[float, Sequence[float]]],
    n_trials: Optional[int] = None,
    timeout: Optional[float] = None,
    n_jobs: int = -1,
    catch: Union[Iterable[Type[Exception]], Type[Exception]] = (),
    callbacks: Iterable[Callback] = (),
    **pool_options: Any,
) -> None:
    """As `study.optimize`, on the workers of a pool.

    What an objective asks for is decided by the study's sampler, in this program. What earlier trials asked for next, with the same
    categories and integers, is decided before a trial begins; where it asks for something else, it is told and begins anew: so let
    objectives ask before they do what takes long. `trial.report` and `trial.should_prune` ask the study's pruner on the worker, which knows what trials that have ended have
    reported, and what of this one. A worker or a node that dies costs its trial another attempt.

    :param n_trials: How many trials; None: until `timeout`, or until a callback calls `study.stop()`.
    :param timeout: Seconds after which no trial is begun.
    :param n_jobs: The most trials at a time; -1: as many as the cluster has room for.
    :param catch: Exceptions that fail their trial only; others fail it and are raised here.
    :param callbacks: Called with the study and each trial that has ended, in this thread.
    :param pool_options: As for `Pool`: `cpus` (default: 1), `gpus`, `where`, `environment`, ...
    """
    pool_options.setdefault("cpus", None if pool_options.get("gpus") else 1)
    pool_options.setdefault("name", study.study_name)
    init = objective, [one.name for one in study.directions], study.pruner, _ended(study)
    with Pool(Trials, init, max_workers=None if n_jobs < 0 else n_jobs, **pool_options) as pool:
        run = _Run(study, pool, tuple(catch) if isinstance(catch, Iterable) else (catch,), list(callbacks))
        # As in `study.optimize`: samplers and callbacks may call `study.stop`.
        study._stop_flag, study._thread_local.in_optimize_loop = False, True
        try:
            run.go(n_trials, None if timeout is None else time.monotonic() + timeout)
        finally:
            study._thread_local.in_optimize_loop = False
            run.give_up()


class _Run:
    def __init__(self, study: Any, pool: Pool[Any], catch: Tuple[Any, ...], callbacks: List[Callback]) -> None:
        self.study = study
        self.pool = pool
        self.catch = catch
        self.callbacks = callbacks
        self.under_way: Dict["Future[Any]", Trial] = {}
        self.begun = 0
        # What trials ask for when they have been told this much; None: it depends on more than categories and integers.
        self.next: Dict[Told, Optional[Tuple[str, BaseDistribution]]] = {}
        self.told: Dict[int, Told] = {}

    def go(self, n_trials: Optional[int], deadline: Optional[float]) -> None:
        while True:
            while self._has_room() and not self._is_over(n_trials, deadline):
                self._begin()
            if not self.under_way:
                return
            done, _ = wait(self.under_way, _LOOK_SECONDS, FIRST_COMPLETED)
            for future in done:
                self._answered(self.under_way.pop(future), future)

    def give_up(self) -> None:
        """Trials that nobody will hear of have failed."""
        for trial in self.under_way.values():
            self.study.tell(trial, state=TrialState.FAIL)

    def _has_room(self) -> bool:
        # One at least: for that, the pool waits for its first worker.
        return len(self.under_way) < max(1, self.pool._engine.workers)

    def _is_over(self, n_trials: Optional[int], deadline: Optional[float]) -> bool:
        if n_trials is not None and self.begun >= n_trials:
            return True
        return bool(self.study._stop_flag) or (deadline is not None and time.monotonic() >= deadline)

    def _begin(self) -> None:
        self.begun += 1
        trial = self.study.ask()
        self.told[trial.number] = ()
        self._send(trial)

    def _send(self, trial: Trial) -> None:
        expected = self.next.get(self.told[trial.number])
        while expected is not None:
            self._tell(trial, *expected)
            expected = self.next.get(self.told[trial.number])
        future = self.pool.submit(trial.number, trial.params, trial.user_attrs)
        self.under_way[future] = trial

    def _answered(self, trial: Trial, future: "Future[Any]") -> None:
        try:
            what, value, more = future.result()
        except BaseException as error:
            what, value, more = "failed", error, {}
        if what == "ask":
            told = self.told[trial.number]
            self.next[told] = value if self.next.get(told, value) == value else None
            self._tell(trial, *value)
            self._send(trial)
            return
        self._keep(trial, more)
        if what == "failed":
            ended = self.study.tell(trial, state=TrialState.FAIL)
        elif what == "pruned":
            ended = self.study.tell(trial, state=TrialState.PRUNED)
        else:
            ended = self.study.tell(trial, value, skip_if_finished=False)
        self.pool.update_workers(ended)
        for callback in self.callbacks:
            callback(self.study, ended)
        if what == "failed" and not isinstance(value, self.catch):
            raise value

    def _tell(self, trial: Trial, name: str, distribution: BaseDistribution) -> None:
        value = _suggest(trial, name, distribution)
        self.told[trial.number] += ((name, None if isinstance(value, float) else value),)

    def _keep(self, trial: Trial, more: Dict[str, Any]) -> None:
        """What a trial has reported and noted on its worker."""
        told = self.told.pop(trial.number)
        used = more.get("used", len(told))
        if used < len(told):
            # It was told of what it did not ask for.
            self.next[told[:used]] = None
        for step, value in more.get("reports", {}).items():
            trial.report(value, step)
        for key, value in more.get("user_attrs", {}).items():
            if trial.user_attrs.get(key, trial) != value:
                trial.set_user_attr(key, value)
        for key, value in more.get("system_attrs", {}).items():
            # Of pruners, which look for them in other trials.
            self.study._storage.set_trial_system_attr(trial._trial_id, key, value)


def _ended(study: Any) -> List[FrozenTrial]:
    return [one for one in study.get_trials(deepcopy=False) if one.state.is_finished()]


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, FloatDistribution):
        return trial.suggest_float(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    raise TypeError("the parameter %s is of a kind that this version does not know: %r" % (name, distribution))
