"""Runs Stable-Baselines3 for `paper.py`: a learning curve, then reports on its best policy.

Gymnasium's environments are made as in `peers.py`. One of podrace's simulators (an id with options) is wrapped as one
batch, so it steps as fast as with podrace.
"""

import copy
import importlib
from collections.abc import Mapping
from typing import Any

from loops import sb3 as loop
from loops.process import EPISODES, Answer, Measure, Request, serve

from papers.curve import FRESH_SEED, TRAIN, VALIDATION, PeerCurve, report_answer, reports_of

FOREVER_STEPS = 10**9


def load(threads: int) -> Measure:
    """Imports it; returns the function that answers requests."""
    loop.load(threads)
    importlib.import_module("stable_baselines3.common.evaluation")
    return measure


def measure(request: Request, cores: int) -> Answer:
    """Trains until the budget is spent, then plays the reports with the best policy."""
    best: dict[str, Any] = {}

    def keep() -> None:
        best["parameters"] = copy.deepcopy(model.get_parameters())
        best["normalizer"] = copy.deepcopy(getattr(model.get_vec_normalize_env(), "obs_rms", None))

    def score() -> float:
        normalizer = getattr(model.get_vec_normalize_env(), "obs_rms", None)
        returns, _ = play(model, request, request.options.get(VALIDATION, {}), EPISODES, request.seed + 1, normalizer)
        return sum(returns) / len(returns)

    curve = PeerCurve(request, score, keep)
    environments = make_environments(request, request.options.get(TRAIN, {}), request.count, request.seed)
    model = loop.make_model(request, environments)
    callback = loop.make_callback(curve.over)
    try:
        model.learn(FOREVER_STEPS, callback=callback)
    finally:
        environments.close()
    model.set_parameters(best["parameters"])
    reports = {
        name: report_answer(*play(model, request, options, episodes, FRESH_SEED, best["normalizer"]))
        for name, (options, episodes) in reports_of(request).items()
    }
    return curve.answer(reports)


def play(
    model: Any, request: Request, options: Mapping[str, Any], episodes: int, seed: int, normalizer: Any
) -> tuple[list[float], dict[str, float]]:
    """Plays greedy episodes; returns their returns, and the simulator's report on the first lane's last one."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    environments = make_environments(request, options, episodes, seed, training=False)
    if isinstance(environments, VecNormalize) and normalizer is not None:
        environments.obs_rms = normalizer
    try:
        returns, _ = evaluate_policy(
            model, environments, episodes, deterministic=True, return_episode_rewards=True, warn=False
        )
        metrics = environments.env_method("measures", indices=0)[0] if TRAIN in request.options else {}
        return [float(value) for value in returns], metrics
    finally:
        environments.close()


def make_environments(
    request: Request, options: Mapping[str, Any], count: int, seed: int, *, training: bool = True
) -> Any:
    """Makes a vector environment; Gymnasium's environments as in `peers.py`."""
    if TRAIN not in request.options:
        wanted = Request(request.measure, request.algorithm, request.environment, count, request.settings, seed)
        return loop.make_environments(wanted, count, training=training)
    from papers.batch import Batch

    return Batch(request.environment, options, count, seed)


if __name__ == "__main__":
    serve(load)
