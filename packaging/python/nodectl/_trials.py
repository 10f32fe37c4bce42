"""The worker of `nodectl.optuna`: calls the objective with parameters that were chosen elsewhere. The module travels by value: workers
need no package of ours, but optuna."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Tuple


class Trials:
    """Answers (how the trial ended, its values or what it wants to be told, what it reported and noted)."""

    def __init__(self, objective: Callable[[Any], Any], directions: List[Any], pruner: Any, ended: List[Any]) -> None:
        import optuna

        logging.getLogger("optuna").setLevel(logging.WARNING)
        self.objective = objective
        # A copy of what the pruner asks of a study. Trials of this worker are known here when all are told of them.
        self.study = optuna.create_study(directions=[one.lower() for one in directions], pruner=pruner, sampler=_asking(optuna))
        self.study.add_trials(ended)

    def handle_update(self, ended: Any) -> None:
        self.study.add_trial(ended)

    def run(self, number: int, params: Dict[str, Any], user_attrs: Dict[str, Any]) -> Tuple[str, Any, Dict[str, Any]]:
        import optuna

        self.study.enqueue_trial(params, user_attrs=user_attrs)
        trial = self.study.ask()
        # As the study numbers it, for objectives that name files by it.
        trial.__class__ = _numbered(optuna, number)
        try:
            try:
                what, value = "complete", self.objective(trial)
            except optuna.TrialPruned:
                what, value = "pruned", None
            except Exception as error:
                asked = getattr(error, "nodectl_asks", None)
                if asked is None:
                    raise
                return "ask", asked, {}
            noted = self.study.get_trials(deepcopy=False)[-1]
            attrs = {key: kept for key, kept in noted.system_attrs.items() if key != "fixed_params"}
            more = {"reports": noted.intermediate_values, "user_attrs": noted.user_attrs, "system_attrs": attrs}
            return what, value, {**more, "used": len(noted.params)}
        finally:
            self.study.tell(self.study.get_trials(deepcopy=False)[-1].number, state=optuna.trial.TrialState.FAIL)


def _numbered(optuna: Any, number: int) -> Any:
    class Numbered(optuna.trial.Trial):  # type: ignore[misc]
        @property
        def number(self) -> int:
            return number

    return Numbered


def _asking(optuna: Any) -> Any:
    """A sampler that knows nothing: it has its program asked."""

    class Asks(Exception):
        pass

    class Asking(optuna.samplers.BaseSampler):  # type: ignore[misc]
        def infer_relative_search_space(self, study: Any, trial: Any) -> Dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, space: Any) -> Dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            asks = Asks("the parameter %s is not chosen yet" % name)
            asks.nodectl_asks = (name, distribution)  # type: ignore[attr-defined]
            raise asks

    return Asking()
