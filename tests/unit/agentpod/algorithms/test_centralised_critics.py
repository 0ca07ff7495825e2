"""MADDPG and MATD3: critics judge what all agents see and do, actors see only what their agent sees."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from exactness import BATCH, assert_gradient, descend, doubled, random_batch, random_noise, scrambled
from experience import SPACES, TEAM, Course, new_algorithm
from references import deterministic_action, ensemble_outputs, smoothed, squared_errors
from torch import Tensor

from agentpod.algorithms import make
from agentpod.algorithms.teams.maddpg import joint_actions
from podrace.errors import InvalidArgument

AGENTS, STEPS = 2, BATCH // 2
NOISE = {"target_noise": 0.3, "target_noise_clip": 0.4, "policy_delay": 1}
Tensors = dict[str, Tensor]


def test_the_critic_of_an_agent_sees_that_agent_first_and_then_the_others_in_order() -> None:
    observation, action = torch.arange(6.0).view(6, 1), 10 * torch.arange(6.0).view(6, 1)
    assert joint_actions(observation, action, 3).tolist() == [
        [0, 0, 1, 10, 2, 20, 1, 0, 0],
        [1, 10, 2, 20, 0, 0, 0, 1, 0],
        [2, 20, 0, 0, 1, 10, 0, 0, 1],
        [3, 30, 4, 40, 5, 50, 1, 0, 0],
        [4, 40, 5, 50, 3, 30, 0, 1, 0],
        [5, 50, 3, 30, 4, 40, 0, 0, 1],
    ]


def values(tensors: Tensors, observation: Tensor, action: Tensor, activation: str) -> Tensor:
    """Q_c,i(o_1, a_1, ..., o_A, a_A) of every step and agent: [C, B A], step by step and agent by agent."""
    rows = []
    for step, agent in itertools.product(range(len(observation) // AGENTS), range(AGENTS)):
        seen = []
        for ahead in range(AGENTS):
            other = step * AGENTS + (agent + ahead) % AGENTS
            seen += [observation[other], action[other]]
        one_hot = torch.zeros(AGENTS, dtype=torch.float64)
        one_hot[agent] = 1.0
        rows.append(torch.cat((*seen, one_hot)))
    return ensemble_outputs(tensors, torch.stack(rows), activation).squeeze(-1)


def team(of: Tensor, reduce: Any) -> Tensor:
    return torch.stack(
        [reduce(of[step * AGENTS : (step + 1) * AGENTS]) for step in range(STEPS) for _ in range(AGENTS)]
    )


@pytest.mark.parametrize(
    ("name", "activation", "critics", "shared"),
    [
        *itertools.product(("maddpg", "matd3"), ("tanh", "relu"), (1, 2), (False,)),
        *itertools.product(("maddpg", "matd3"), ("relu",), (2,), (True,)),
    ],
)
def test_a_step_follows_the_losses_of_the_papers(name: str, activation: str, critics: int, shared: bool) -> None:
    smoothing = NOISE if name == "matd3" else {}
    for seed in (0, 1):
        settings = {"activation": activation, "critics": critics, "shared_reward": shared, "maximum_gradient_norm": 0.0}
        algorithm = scrambled(name, "continuous", seed, batch_size=STEPS, **settings, **smoothing)
        batch, noise = random_batch("continuous", seed, STEPS * AGENTS), random_noise(algorithm, seed)
        step, exact = descend(algorithm, batch, noise), doubled(batch)
        reward, discount = exact.reward, exact.discount
        if shared:
            reward, discount = team(reward, torch.sum), team(discount, torch.amax)

        following = deterministic_action(step.target, exact.next_observation, activation)
        if smoothing:
            following = smoothed(following, 0.3 * noise.double(), 0.4)
        # An agent whose step terminated is absent afterwards.
        remains = (exact.discount > 0).unsqueeze(1)
        after = values(step.target, exact.next_observation * remains, following * remains, activation).amin(0)
        leaves = step.leaves("critic")
        judged = values({**step.before, **leaves}, exact.observation, exact.action, activation)
        loss, errors = squared_errors(judged, reward + discount * after, exact.weight)
        assert_gradient(step, loss, leaves)
        assert step.metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
        torch.testing.assert_close(step.errors.double(), errors.abs().mean(0).detach(), rtol=1e-4, atol=1e-5)

        # The actor follows the first critic after its step, one agent at a time: the others do as they did.
        leaves = step.leaves("actor")
        critic = {key: tensor for key, tensor in step.after.items() if key.startswith("critic.")}
        own = deterministic_action({**step.before, **leaves}, exact.observation, activation)
        total = torch.zeros((), dtype=torch.float64)
        for agent in range(AGENTS):
            action = exact.action.clone()
            action[agent::AGENTS] = own[agent::AGENTS]
            total = total + values(critic, exact.observation, action, activation)[0, agent::AGENTS].sum()
        loss = -total / len(exact.observation)
        assert_gradient(step, loss, leaves)
        assert step.metrics["policy_loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
def test_steps_are_those_of_environments(name: str) -> None:
    algorithm: Any = new_algorithm(name, "continuous", updates_per_step=0.25, batch_size=4)
    course = Course(algorithm, "continuous")
    for _ in range(3):
        algorithm.update(course.next())
    # Four lanes are two environments: 8 steps of each.
    assert algorithm.environment_steps == 3 * 8 * 2
    assert algorithm.gradient_steps == 3 * 8 * 2 / 4


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
def test_a_policy_acts_on_the_observation_of_one_agent_alone(name: str) -> None:
    policy = new_algorithm(name, "continuous").policy
    seen = torch.randn(6, 3)
    together = policy.act_greedily(seen)
    torch.testing.assert_close(together[4:5], policy.act_greedily(seen[4:5]))


def test_images_are_refused() -> None:
    images = dataclasses.replace(TEAM, shape=(4, 84, 84), dtype=torch.uint8)
    with pytest.raises(InvalidArgument, match="algorithm 'matd3' needs observations that are vectors"):
        make("matd3", images, SPACES["continuous"], {"torso": "nature"}, seed=0)
