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
    return make_batch(request.environment, options, count, seed)


def make_batch(id: str, options: Mapping[str, Any], count: int, seed: int) -> Any:
    """Wraps one of podrace's simulators as a VecEnv."""
    import numpy as np
    import torch
    from gymnasium.spaces import Box
    from stable_baselines3.common.vec_env import VecEnv

    from simulators import make

    class Batch(VecEnv):
        def __init__(self) -> None:
            self.simulator = make(id, count, options=options)
            observed, acted = self.simulator.observation_space, self.simulator.action_space
            super().__init__(
                count,
                Box(-np.inf, np.inf, observed.shape, np.float32),
                Box(
                    np.array(acted.low, np.float32).reshape(acted.shape),
                    np.array(acted.high, np.float32).reshape(acted.shape),
                ),
            )

        def reset(self) -> Any:
            return self.simulator.reset(seed).numpy().copy()

        def step_async(self, actions: Any) -> None:
            self.step_seen = self.simulator.step(torch.as_tensor(actions, dtype=torch.float32))

        def step_wait(self) -> Any:
            step = self.step_seen
            ended = (step.terminated | step.truncated).numpy().copy()
            information: list[dict[str, Any]] = [{} for _ in range(count)]
            for lane in ended.nonzero()[0]:
                information[lane] = {
                    "terminal_observation": step.final_observation[lane].numpy().copy(),
                    "TimeLimit.truncated": bool(step.truncated[lane]),
                }
            return step.observation.numpy().copy(), step.reward.numpy().copy(), ended, information

        def measures(self) -> dict[str, float]:
            return self.simulator.report().metrics

        def close(self) -> None:
            self.simulator.close()

        def env_method(self, method_name: str, *_: Any, indices: Any = None, **__: Any) -> list[Any]:
            return [getattr(self, method_name)()]

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self, attr_name, None)] * count

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError(attr_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * count

    return Batch()


if __name__ == "__main__":
    serve(load)
