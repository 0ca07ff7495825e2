"""Spread and tag are those of mpe2, step by step, and every agent has a separate lane."""

from typing import Any

import numpy as np
import pytest
import torch
from mpe2 import simple_spread_v3, simple_tag_v3

from podrace.errors import InvalidArgument
from simulators import make
from simulators.teams.particles import Particles


def placed(simulator: Particles, world: Any) -> None:
    """Puts the discs of a simulator of one environment where those of an mpe2 world are."""
    places = np.array([entity.state.p_pos for entity in world.entities])
    speeds = np.array([agent.state.p_vel for agent in world.agents])
    simulator.position = torch.tensor(places, dtype=torch.float32).unsqueeze(0)
    simulator.velocity = torch.tensor(speeds, dtype=torch.float32).unsqueeze(0)


@pytest.mark.parametrize("crowded", [1.0, 0.2])
@pytest.mark.parametrize(
    ("id", "module", "scripted"), [("spread", simple_spread_v3, 0), ("tag", simple_tag_v3, 1)], ids=["spread", "tag"]
)
def test_observations_and_rewards_are_those_of_mpe2(id: str, module: Any, scripted: int, crowded: float) -> None:
    environment = module.parallel_env(max_cycles=100)
    environment.reset(seed=3)
    world = environment.unwrapped.world
    for entity in world.entities:
        entity.state.p_pos *= crowded  # collisions
    options = {"max_episode_steps": 100, **({"prey_policy": "still"} if scripted else {})}
    simulator = make(id, 1, options)
    assert isinstance(simulator, Particles)
    placed(simulator, world)
    names, generator = simulator.observation_space.agents, np.random.default_rng(1)
    contacts = 0.0
    for _ in range(40):
        actions = generator.integers(5, size=len(names))
        asked = dict(zip(names, actions.tolist(), strict=True))
        observed, rewards, *_ = environment.step({name: asked.get(name, 0) for name in environment.agents})
        step = simulator.step(torch.tensor(actions))
        torch.testing.assert_close(
            step.observation, torch.tensor(np.stack([observed[name] for name in names])), atol=2e-4, rtol=1e-4
        )
        expected = torch.tensor([float(rewards[name]) for name in names])
        torch.testing.assert_close(step.reward, expected, atol=2e-4, rtol=1e-4)
        contacts += float(expected.abs().sum())
        placed(simulator, world)  # errors do not add up
    assert contacts > 0 or crowded == 1.0


def test_the_lanes_of_an_environment_are_adjacent_and_end_together() -> None:
    simulator = make("spread", 4, {"agents": 2, "max_episode_steps": 3})
    first = simulator.reset(5)
    assert (simulator.count, simulator.observation_space.agents) == (8, ("agent_0", "agent_1"))
    own = first.view(4, 2, -1)[..., 2:4]
    # What the first agent sees of the second is where the second sees itself.
    assert torch.allclose(own[:, 0] + first.view(4, 2, -1)[:, 0, 8:10], own[:, 1])
    ends = [simulator.step(torch.zeros(8, dtype=torch.int64)).truncated.tolist() for _ in range(6)]
    assert ends == [[False] * 8, [False] * 8, [True] * 8] * 2


def test_an_episode_is_named_by_its_seed() -> None:
    simulator = make("tag", 3, {"prey_policy": "random"})
    actions = torch.arange(9) % 5

    def played(seed: int) -> torch.Tensor:
        simulator.reset(seed)
        return torch.stack([simulator.step(actions).observation.clone() for _ in range(5)])

    assert torch.equal(played(1), played(1))
    assert not torch.equal(played(1), played(2))


def test_prey_that_flees_keeps_away() -> None:
    def caught(policy: str) -> float:
        simulator = make("tag", 200, {"prey_policy": policy})
        assert isinstance(simulator, Particles)
        simulator.reset(1)
        total = 0.0
        for _ in range(25):
            own, prey = simulator.position[:, :3], simulator.position[:, 3:4]
            wish = prey - own
            right = torch.where(wish[..., 0] > 0, 2, 1)
            up = torch.where(wish[..., 1] > 0, 4, 3)
            chase = torch.where(wish[..., 0].abs() > wish[..., 1].abs(), right, up)
            total += float(simulator.step(chase.flatten()).reward.sum())
        return total

    assert caught("flee") < 0.7 * caught("still")


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("spread", {"agents": 0}, "spread: option 'agents' must be in [1, 64], not 0"),
        ("spread", {"local_ratio": 2.0}, "spread: option 'local_ratio' must be in [0, 1], not 2.0"),
        ("tag", {"prey_policy": "hide"}, "tag: option 'prey_policy' must be one of flee, random, still, not 'hide'"),
        ("tag", {"adversary": 3}, "tag: unknown option 'adversary'; did you mean 'adversaries'?"),
        ("matrix:two-step", {"payoff": 1}, "matrix:two-step: unknown option 'payoff'"),
    ],
)
def test_unusable_options_are_named(id: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(id, 1, options)
    assert message in caught.value.message
