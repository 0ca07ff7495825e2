"""Runs a study of Optuna: TPE with a pruner, as many worker processes as cores, one journal.

    python -m benchmarks.comparison.optuna_peer < request.json

All settings that the request does not name are Optuna's defaults.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from benchmarks.comparison.sb3_trial import StudyRequest, Trial
from benchmarks.comparison.tasks import LOG, REVERSE_LOG, Prior
from benchmarks.comparison.trial_log import TrialLog

NAME = "study"
COMPLEMENT = "1-"
"""Prefix of a parameter that is searched as 1 - x."""


def pruner_of(request: StudyRequest) -> optuna.pruners.BasePruner:
    """Returns the pruner."""
    if request.method == "median":
        return optuna.pruners.MedianPruner()
    return optuna.pruners.SuccessiveHalvingPruner()


def sampled(trial: optuna.Trial, request: StudyRequest) -> dict[str, Any]:
    """Draws the values of a trial."""
    return {name: _suggested(trial, name, request.prior(name)) for name in sorted(request.priors)}


def _suggested(trial: optuna.Trial, name: str, prior: Prior) -> float:
    if prior.whole:
        return trial.suggest_int(name, int(prior.low), int(prior.high), log=prior.scale == LOG)
    if prior.scale == REVERSE_LOG:
        return 1 - trial.suggest_float(COMPLEMENT + name, 1 - prior.high, 1 - prior.low, log=True)
    return trial.suggest_float(name, prior.low, prior.high, log=prior.scale == LOG)


def defaults(request: StudyRequest) -> dict[str, Any]:
    """Returns the parameters of the first trial, where it has the default values."""
    found = {}
    for name in request.priors:
        reverse, value = request.prior(name).scale == REVERSE_LOG, request.defaults[name]
        found[COMPLEMENT + name if reverse else name] = 1 - value if reverse else value
    return found


def work(request: StudyRequest, worker: int, began: float) -> None:
    """Runs trials in this process until the budget is spent."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log = TrialLog(Path(request.folder))
    study = open_study(request, worker)

    def over() -> bool:
        return time.time() - began >= request.seconds

    def objective(trial: optuna.Trial) -> float:
        one = Trial(request, sampled(trial, request), f"trial-{trial.number}", began, log)
        score = -1e30
        try:
            for report in range(request.reports):
                score = max(score, one.advance())
                trial.report(score, report)
                if over() or trial.should_prune():
                    raise optuna.TrialPruned
        finally:
            one.close()
        return score

    # A trial that diverges, for instance into values that are not finite, is a failed trial of this library.
    study.optimize(
        objective, timeout=request.seconds - (time.time() - began), catch=(ValueError, RuntimeError, FloatingPointError)
    )


def open_study(request: StudyRequest, worker: int) -> optuna.Study:
    """Opens the study that all workers share."""
    return optuna.create_study(
        study_name=NAME,
        storage=JournalStorage(JournalFileBackend(str(Path(request.folder) / "journal.log"))),
        sampler=optuna.samplers.TPESampler(seed=1000 * request.seed + worker),
        pruner=pruner_of(request),
        direction="maximize",
        load_if_exists=True,
    )


def main() -> None:
    """Runs the study on standard input, and prints how long it took."""
    request = StudyRequest(**json.load(sys.stdin))
    study = open_study(request, 0)
    if request.first_default:
        study.enqueue_trial(defaults(request))
    # The workers inherit the imports, so that the budget is spent on training.
    context = multiprocessing.get_context("fork")
    began = time.time()
    workers = [context.Process(target=work, args=(request, number, began)) for number in range(request.cores)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    print(json.dumps({"wall_seconds": time.time() - began}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
