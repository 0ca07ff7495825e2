"""PPO learns on the test doubles of Isaac Gym and Isaac Lab."""

import sys
from pathlib import Path

import pytest
import torch

from agentpod.algorithms import make as make_algorithm
from agentpod.experience.rollout import Lanes, collect, rollout_fields
from agentpod.seeding import derive_generator
from simulators import make

STAND_IN = str(Path(__file__).parent / "stand_in" / "python")
LANES, UPDATES = 16, 25


@pytest.mark.parametrize(
    ("id", "discount", "first", "last"),
    [
        # A point that is pushed at random strays; a point held near 0 returns 50 minus the cost of its swings.
        ("isaacgym:Point", 0.99, 35.0, 45.0),
        # The task raises at an invalid action. Valid actions at random are worth 3.3 of 10.
        ("isaaclab:Isaac-Choices-Direct", 0.3, 5.0, 7.5),
    ],
)
def test_ppo_learns_through_the_isaac_client(
    id: str, discount: float, first: float, last: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISAAC_STAND_IN_PYTHON", sys.executable)
    simulator = make(id, LANES, {"interpreter": STAND_IN, "simulation_device": "cpu"})
    spaces = simulator.observation_space, simulator.action_space
    settings = {
        "horizon": 64,
        "learning_rate": 3e-3,
        "hidden_sizes": (32, 32),
        "minibatch_size": 256,
        "discount": discount,
    }
    algorithm = make_algorithm("ppo", *spaces, settings, 1)
    fields = rollout_fields(*spaces, algorithm.memory.horizon, LANES)
    rollout = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    lanes = Lanes.start(simulator.reset(1))
    returns: list[float] = []
    for update in range(UPDATES):
        result = collect(simulator, algorithm.policy, rollout, lanes, derive_generator("cpu", 1, "act", 0, update))
        lanes = result.lanes
        returns.append(result.episode_returns.mean().item())
        algorithm.update(rollout)
    simulator.close()
    assert returns[0] < first
    assert min(returns[-3:]) > last
