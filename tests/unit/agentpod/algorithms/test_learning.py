"""Trains every algorithm from scratch to a known score, in one process, with three seeds. Marked slow."""

from typing import NamedTuple

import pytest
from experience import EXAMPLES
from learning import best_score

Settings = dict[str, object]

SMALL: Settings = {"hidden_sizes": [64, 64]}
"""Large enough for low-dimensional observations."""
AHEAD: Settings = {**SMALL, "n_step": 10}
"""Ten-step returns propagate the end of an episode ten times as fast as single steps."""
BALANCE: Settings = {
    **SMALL,
    "activation": "tanh",
    "normalize_observations": True,
    "learning_rate": 1e-3,
    "learning_rate_steps": 50_000,
    "updates_per_step": 0.5,
    "exploration_steps": 10_000,
    "huber_delta": 0.0,
}
"""One action changes CartPole's value of 100 only slightly: tanh networks, squared errors and small last steps help."""
BALANCE_DISTRIBUTION: Settings = {
    key: value for key, value in BALANCE.items() if key not in ("activation", "huber_delta")
}
"""C51 has neither."""
SWING: Settings = {
    **AHEAD,
    "learning_rate": 1e-3,
    "learning_rate_steps": 80_000,
    "target_rate": 0.02,
    "final_exploration": 0.02,
}
SEGMENTS: Settings = {"horizon": 8, "batch_size": 128}
"""DQN's defaults."""
BALANCE_SOFTLY: Settings = {
    **AHEAD,
    **SEGMENTS,
    "normalize_observations": True,
    "activation": "tanh",
    "learning_rate": 1e-3,
    "updates_per_step": 0.5,
    "target_rate": 0.01,
}
SWING_SOFTLY: Settings = {
    **SMALL,
    **SEGMENTS,
    "n_step": 5,
    "learning_rate": 5e-4,
    "updates_per_step": 0.25,
    "target_rate": 0.02,
    "target_entropy_scale": 0.3,
    "initial_temperature": 0.1,
}
"""Acrobot's reward is -1 per step: an initial temperature of 0.1 keeps the entropy term smaller."""
UPRIGHT: Settings = {
    "horizon": 200,
    "learning_rate": 1e-3,
    "discount": 0.95,
    "entropy_coefficient": 0.0,
    "epochs": 10,
    "minibatch_size": 256,
}
"""A rollout is one episode of Pendulum, used for ten epochs."""
TOUCH_DOWN: Settings = {
    "horizon": 256,
    "learning_rate": 1e-3,
    "discount": 0.995,
    "gae_lambda": 0.98,
    "entropy_coefficient": 0.01,
    "learning_rate_steps": 900_000,
}
"""The reward for landing is delayed; with a constant learning rate, one seed of three needs twice the steps."""
LAND: Settings = {"normalize_observations": True, "learning_rate_steps": 300_000, "exploration_steps": 40_000}
"""Epsilon decreases four times as slowly as for CartPole."""

BALANCED = 499.5
"""Almost the maximum of 500: an episode may end in its last steps."""


class Task(NamedTuple):
    """An algorithm, an environment and the required score."""

    algorithm: str
    environment: str
    settings: Settings
    steps: int
    """Environment steps, over all environments."""
    wanted: float
    """Mean return of 32 greedy episodes that one of the intermediate scores must reach."""


TASKS = [
    Task("ppo", "CartPole-v1", {"learning_rate": 1e-3}, 80_000, BALANCED),
    Task("a2c", "CartPole-v1", {}, 200_000, BALANCED),
    Task(EXAMPLES[0], "CartPole-v1", {}, 200_000, BALANCED),
    Task("python:c51:C51", "CartPole-v1", BALANCE_DISTRIBUTION, 60_000, BALANCED),
    Task("python:lion:LionActorCritic", "CartPole-v1", {"learning_rate_steps": 200_000}, 200_000, BALANCED),
    Task("dqn", "CartPole-v1", BALANCE, 60_000, BALANCED),
    Task("double-dqn", "CartPole-v1", BALANCE, 60_000, BALANCED),
    Task("dueling-dqn", "CartPole-v1", BALANCE, 60_000, BALANCED),
    Task("d3qn", "CartPole-v1", BALANCE, 60_000, BALANCED),
    Task("sac-discrete", "CartPole-v1", BALANCE_SOFTLY, 40_000, BALANCED),
    Task("ppo", "Acrobot-v1", {"learning_rate": 1e-3}, 80_000, -100.0),
    Task("a2c", "Acrobot-v1", {}, 120_000, -100.0),
    Task("dqn", "Acrobot-v1", SWING, 80_000, -100.0),
    Task("double-dqn", "Acrobot-v1", SWING, 80_000, -100.0),
    Task("dueling-dqn", "Acrobot-v1", SWING, 80_000, -100.0),
    Task("d3qn", "Acrobot-v1", SWING, 80_000, -100.0),
    Task("sac-discrete", "Acrobot-v1", SWING_SOFTLY, 50_000, -100.0),
    Task("ppo", "Pendulum-v1", UPRIGHT, 150_000, -200.0),
    Task("ddpg", "Pendulum-v1", SMALL, 20_000, -200.0),
    Task("td3", "Pendulum-v1", SMALL, 20_000, -200.0),
    Task("sac", "Pendulum-v1", {**SMALL, "learning_rate": 1e-3}, 20_000, -200.0),
    Task("ppo", "LunarLander-v3", TOUCH_DOWN, 900_000, 200.0),
    Task("d3qn", "LunarLander-v3", LAND, 300_000, 200.0),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.algorithm}/{task.environment}")
def test_the_algorithm_reaches_the_score(task: Task, seed: int) -> None:
    score = best_score(task.algorithm, task.environment, task.settings, seed, task.steps, task.wanted)
    assert score >= task.wanted
