"""Learning itself: from nothing to a known score, in one process, on three seeds. Marked slow."""

import pytest
import torch

from agentpod.algorithms import Algorithm, make
from agentpod.evaluator import play, score
from agentpod.policy import Policy
from agentpod.randomness import derive_generator, derive_seed
from agentpod.rollout import Lanes, collect, rollout_fields
from simulators import make as make_simulator

ENVIRONMENTS = 16
EPISODES = 32


def train(id: str, hyperparameters: dict[str, object], seed: int, steps: int) -> Algorithm:
    """Trains on `steps` environment steps, counted over all environments."""
    simulator = make_simulator(id, ENVIRONMENTS)
    spaces = simulator.observation_space, simulator.action_space
    algorithm = make("ppo", *spaces, hyperparameters, seed)
    fields = rollout_fields(*spaces, algorithm.horizon, ENVIRONMENTS)
    rollout = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    lanes = Lanes.start(simulator.reset(derive_seed(seed, "reset", 0)))
    while algorithm.update_number * algorithm.horizon * ENVIRONMENTS < steps:
        generator = derive_generator("cpu", seed, "act", 0, algorithm.update_number)
        lanes = collect(simulator, algorithm.policy, rollout, lanes, generator).lanes
        algorithm.update(rollout)
    simulator.close()
    return algorithm


def evaluate(id: str, policy: Policy) -> float:
    """Mean return of EPISODES greedy episodes, as the evaluator plays them."""
    simulator = make_simulator(id, EPISODES)
    try:
        return score(play(simulator, policy, EPISODES, 12345, greedy=True)).mean_return
    finally:
        simulator.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_is_solved(seed: int) -> None:
    algorithm = train("CartPole-v1", {"learning_rate": 1e-3}, seed, steps=80_000)
    assert evaluate("CartPole-v1", algorithm.policy) >= 475.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pendulum_swings_up(seed: int) -> None:
    settings: dict[str, object] = {"learning_rate": 1e-3, "discount": 0.95, "epochs": 10}
    algorithm = train("Pendulum-v1", settings, seed, steps=120_000)
    assert evaluate("Pendulum-v1", algorithm.policy) >= -250.0
