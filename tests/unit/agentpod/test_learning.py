"""Learning itself: from nothing to a known score, in one process, on three seeds. Marked slow."""

import pytest
from learning import evaluate, train

SMALL = {"hidden_sizes": [64, 64]}
TASKS = {
    "ppo/CartPole-v1": ({"learning_rate": 1e-3}, 80_000, 475.0),
    "a2c/CartPole-v1": ({}, 200_000, 475.0),
    "ppo/Pendulum-v1": ({"learning_rate": 1e-3, "discount": 0.95, "epochs": 10}, 120_000, -250.0),
    "ddpg/Pendulum-v1": (SMALL, 20_000, -200.0),
    "td3/Pendulum-v1": (SMALL, 20_000, -200.0),
    "sac/Pendulum-v1": ({**SMALL, "learning_rate": 1e-3}, 20_000, -200.0),
}
"""Settings, environment steps over all environments, and the return of 32 greedy episodes that must be reached."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("task", TASKS)
def test_what_can_be_learned_is_learned(task: str, seed: int) -> None:
    settings, steps, wanted = TASKS[task]
    name, _, environment = task.partition("/")
    algorithm = train(name, environment, settings, seed, steps)
    assert evaluate(environment, algorithm.policy) >= wanted
