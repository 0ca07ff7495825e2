"""Runs a study of Ray Tune: PBT, PB2 or ASHA, with as many trials at a time as cores.

    python -m benchmarks.comparison.ray_peer < request.json

All settings that are not named here are Ray's defaults.
"""

import json
import os
import pickle
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2

from benchmarks.comparison.sb3_trial import StudyRequest, Trial
from benchmarks.comparison.tasks import REVERSE_LOG
from benchmarks.comparison.trial_log import TrialLog

POPULATION = 8
"""Trials of PBT and PB2, as many as podrace's populations have."""
PERTURBATION_INTERVAL = 1
"""Scores between two perturbations: in the budget, each member has about as many turns as in podrace's populations."""
STATE = "state.pkl"
ASHA_TRIALS = 10_000
"""More than fit into any budget: ASHA draws trials until the time ends."""


class Training(tune.Trainable):  # type: ignore[misc]
    """One trial. Its configuration has the positions of hyperparameters in their priors, or their values."""

    def setup(self, config: dict[str, Any]) -> None:
        """Makes the trial."""
        torch.set_num_threads(1)
        self._request, self._began = StudyRequest(**config["request"]), config["began"]
        self._log = TrialLog(Path(self._request.folder))
        self._begin(config)

    def _begin(self, config: dict[str, Any]) -> None:
        self._training = Trial(self._request, values_of(config, self._request), self.trial_id, self._began, self._log)

    def step(self) -> dict[str, float]:
        """Trains until the next score."""
        return {"score": self._training.advance()}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes the state of the trial."""
        (Path(checkpoint_dir) / STATE).write_bytes(pickle.dumps(self._training.state()))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continues from the state of a trial of this study."""
        self._training.load_state(pickle.loads((Path(checkpoint_dir) / STATE).read_bytes()))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Becomes another trial in the same process."""
        self._training.close()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        """Frees the environments."""
        self._training.close()


def values_of(config: dict[str, Any], request: StudyRequest) -> dict[str, Any]:
    """Returns the hyperparameters of a configuration."""
    found = {}
    for name in request.priors:
        prior = request.prior(name)
        if request.method == "pb2":
            found[name] = prior.at(min(max(config[name], 0.0), 1.0))
        else:
            value = 1 - config[name] if prior.scale == REVERSE_LOG else config[name]
            value = min(max(value, prior.low), prior.high)
            found[name] = round(value) if prior.whole else value
    return found


def draw(request: StudyRequest, name: str, stream: random.Random) -> float:
    """Draws the entry of a configuration from the prior."""
    prior, position = request.prior(name), stream.random()
    if request.method == "pb2":
        return position
    value = prior.at(position)
    return 1 - value if prior.scale == REVERSE_LOG else value


def default(request: StudyRequest, name: str) -> float:
    """Returns the entry of a configuration with the default value."""
    prior, value = request.prior(name), float(request.defaults[name])
    if request.method == "pb2":
        return prior.position(value)
    return 1 - value if prior.scale == REVERSE_LOG else value


def scheduler_of(request: StudyRequest, stream: random.Random) -> TrialScheduler:
    """Returns the scheduler."""
    if request.method == "asha":
        return ASHAScheduler(time_attr="training_iteration", max_t=request.reports)
    common = {"time_attr": "training_iteration", "perturbation_interval": PERTURBATION_INTERVAL}
    if request.method == "pb2":
        # Bounds are those of the positions, so that ranges over several decades are searched by their logarithms.
        return PB2(**common, hyperparam_bounds={name: [0.0, 1.0] for name in request.priors})
    return PopulationBasedTraining(
        **common,
        hyperparam_mutations={name: _drawing(request, name, stream) for name in request.priors},
        custom_explore_fn=lambda config: clipped(config, request),
    )


def _drawing(request: StudyRequest, name: str, stream: random.Random) -> Callable[[], float]:
    return lambda: draw(request, name, stream)


def clipped(config: dict[str, Any], request: StudyRequest) -> dict[str, Any]:
    """Moves the values of a configuration into their ranges: PBT multiplies them by 0.8 or 1.2."""
    for name in request.priors:
        prior = request.prior(name)
        low, high = (1 - prior.high, 1 - prior.low) if prior.scale == REVERSE_LOG else (prior.low, prior.high)
        config[name] = min(max(config[name], low), high)
    return config


def tuner_of(request: StudyRequest, began: float) -> tune.Tuner:
    """Returns the study."""
    stream = random.Random(request.seed)
    count = ASHA_TRIALS if request.method == "asha" else POPULATION
    # Names whose default value the first trial has still to get.
    defaults = set(request.priors) if request.first_default else set()

    def first_or_drawn(name: str) -> float:
        if name in defaults:
            defaults.remove(name)
            return default(request, name)
        return draw(request, name, stream)

    space: dict[str, Any] = {
        name: tune.sample_from(lambda _, name=name: first_or_drawn(name)) for name in sorted(request.priors)
    }
    space |= {"request": vars(request), "began": began}
    return tune.Tuner(
        tune.with_resources(Training, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=scheduler_of(request, stream),
            num_samples=count,
            max_concurrent_trials=request.cores if request.method == "asha" else None,
            time_budget_s=request.seconds,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=str(Path(request.folder) / "ray"),
            stop={"training_iteration": request.reports} if request.method == "asha" else None,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
    )


def main() -> None:
    """Runs the study on standard input, and prints how long it took."""
    request = StudyRequest(**json.load(sys.stdin))
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ray.init(num_cpus=request.cores, include_dashboard=False, log_to_driver=False)
    try:
        began = time.time()
        tuner_of(request, began).fit()
        output.write(json.dumps({"wall_seconds": time.time() - began}))
        output.flush()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
