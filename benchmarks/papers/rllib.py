"""Runs RLlib (its new API stack) for `paper.py`: a learning curve, then reports on its best policy.

Gymnasium's environments are made as in `peers.py`. One of podrace's simulators (an id with options) is wrapped lane by
lane, because RLlib steps single environments (papers/lanes.py).
"""

import functools
import importlib
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loops import rllib as loop
from loops.process import Answer, Measure, Request, serve

from papers.curve import FRESH_SEED, TRAIN, VALIDATION, PeerCurve, report_answer, reports_of
from papers.lanes import make_lane

OURS = "ours"


def load(threads: int) -> Measure:
    """Imports RLlib; returns the function that answers requests."""
    measure = loop.load(threads)
    assert measure
    importlib.import_module("ray.tune.registry")
    return train


def train(request: Request, cores: int) -> Answer:
    """Trains until the budget is spent, then plays the reports with the best policy."""
    with loop.ray_running(), tempfile.TemporaryDirectory(prefix="ray") as folder:
        best: dict[str, str] = {}

        def keep() -> None:
            best["path"] = algorithm.save_to_path(tempfile.mkdtemp(dir=folder))

        curve = PeerCurve(request, lambda: loop.evaluate(algorithm), keep)
        algorithm = make_config(request, runners=0 if cores == 1 else cores).build_algo()
        steps = 0
        try:
            while not curve.over(steps):
                steps = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
            algorithm.restore_from_path(best["path"])
            reports = {
                name: play(algorithm, request, options, episodes)
                for name, (options, episodes) in reports_of(request).items()
            }
        finally:
            algorithm.stop()
    return curve.answer(reports)


def make_config(request: Request, runners: int) -> Any:
    """Translates a request to RLlib's configuration, with evaluations."""
    known = replace(request, measure="target", environment=OURS if TRAIN in request.options else request.environment)
    config = loop.make_config(known, runners)
    if TRAIN not in request.options:
        return config
    from ray.tune.registry import register_env

    register_env(OURS, functools.partial(make_lane, request.environment))
    validation = {"env_config": request.options[VALIDATION]}
    config.environment(OURS, env_config=dict(request.options[TRAIN]))
    config.evaluation_config = {**config.evaluation_config, **validation}
    return config


def play(algorithm: Any, request: Request, options: Mapping[str, Any], episodes: int) -> Answer:
    """Plays a restored policy: Gymnasium environments by RLlib's evaluation, podrace's simulators step by step."""
    if TRAIN not in request.options:
        returns = [loop.evaluate(algorithm) for _ in range(max(1, episodes // 32))]
        return report_answer([statistics.fmean(returns)])
    import numpy as np
    import torch

    lane = make_lane(request.environment, options)
    module = algorithm.get_module()
    returns, seed = [], FRESH_SEED
    for episode in range(episodes):
        observation, _ = lane.reset(seed=seed + episode)
        total, ended = 0.0, False
        while not ended:
            with torch.no_grad():
                output = module.forward_inference({"obs": torch.as_tensor(observation).unsqueeze(0)})
            inputs = output["action_dist_inputs"][0].numpy()
            low, high = lane.action_space.low, lane.action_space.high
            # The first half of a diagonal Gaussian's inputs are its means; RLlib's policies act in [-1, 1].
            action = np.clip(inputs[: len(low)], -1, 1) * (high - low) / 2 + (high + low) / 2
            observation, reward, terminated, truncated, _ = lane.step(action.astype(np.float32))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    return report_answer(returns, dict(lane.simulator.report().metrics))


if __name__ == "__main__":
    serve(load)
