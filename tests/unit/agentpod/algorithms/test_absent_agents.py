"""Agents that have left their environment are not trained on by algorithms that learn from a replay memory."""

import dataclasses
from typing import Any

import pytest
import torch
from experience import SPACES, TEAM
from learning import zeros
from team_worlds import NAMES, Leaving
from torch import Tensor

from agentpod.algorithms import make as make_algorithm
from agentpod.algorithms.teams.team_replay import TeamReplay
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.rollout import Lanes, collect
from agentpod.experience.sequence_batch import sample_sequences
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.policy import Policy

AGENTS, STEPS, OBSERVED, HORIZON = len(NAMES), 4, 3, 7
SPACE = dataclasses.replace(TEAM, agents=NAMES)
VALUES = pytest.mark.parametrize("name", ["vdn", "qmix"])
CRITICS = pytest.mark.parametrize(
    ("name", "kind"), [("maddpg", "continuous"), ("maddpg", "discrete"), ("matd3", "continuous")]
)
PRESENT = torch.tensor([1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0], dtype=torch.bool)
"""Of each agent in each of four steps."""


def replay_of_a_team_whose_agents_leave() -> ReplayBuffer:
    """Observations are 0 exactly where an agent is absent; segments end within episodes."""
    team = Leaving(2)
    policy = Policy(team.observation_space, team.action_space, make_network())
    rows = replay_rows(256, HORIZON, team.count)
    fields = replay_fields(team.observation_space, team.action_space, rows, team.count)
    memory = zeros(fields)
    replay, lanes = ReplayBuffer(memory, HORIZON), Lanes.start(team.reset(1), 0, AGENTS)
    for number in range(4):
        first = replay.grant()
        segment = {key: tensor[first : first + HORIZON] for key, tensor in memory.items()}
        lanes = collect(team, policy, segment, lanes, torch.Generator().manual_seed(number)).lanes
        replay.receive(first)
    return replay


def make_network() -> Any:
    return make_algorithm("vdn", Leaving.observation_space, Leaving.action_space, {"hidden_sizes": [4]}, 1).network


def test_sampled_rows_of_absent_agents_have_the_weight_0() -> None:
    team = TeamReplay(replay_of_a_team_whose_agents_leave(), AGENTS)
    for n_step in (1, 2):
        batch = team.sample(256, n_step, 0.9, torch.Generator().manual_seed(n_step))
        present = batch.observation.squeeze(1) != 0
        assert 0 < (~present).sum() < present.sum()
        assert torch.equal(batch.weight, present.float())
        # What follows for an agent that has left is worth nothing, and the others continue.
        assert (batch.discount.view(-1, AGENTS)[(~present).view(-1, AGENTS)] == 0).all()


def test_statistics_do_not_contain_observations_of_absent_agents() -> None:
    replay = replay_of_a_team_whose_agents_leave()
    observations = replay.newest_observations()
    assert torch.equal(TeamReplay(replay, AGENTS).newest_observations(), observations[observations.squeeze(1) != 0])
    assert (observations == 0).any()
    settings = {"hidden_sizes": [4], "normalize_observations": True, "warmup_steps": 300_000}
    algorithm: Any = make_algorithm("vdn", Leaving.observation_space, Leaving.action_space, settings, 1)
    algorithm.update(replay)
    seen = observations[observations != 0]
    assert torch.isclose(algorithm._observations.total.mean, seen.double().mean()).all()


def test_sampled_sequences_of_absent_agents_have_the_weight_0() -> None:
    replay = replay_of_a_team_whose_agents_leave()
    batch = sample_sequences(replay, 64, AGENTS, 5, 0, 0.9, torch.Generator().manual_seed(1))
    assert torch.equal(batch.weight, (batch.observation.squeeze(1) != 0).float())


def batch_of(kind: str) -> TransitionBatch:
    generator = torch.Generator().manual_seed(3)
    rows = STEPS * AGENTS
    observation, following = torch.randn(2, rows, OBSERVED, generator=generator)
    drawn = torch.randint(3, (rows,), generator=generator)
    action = drawn if kind == "discrete" else torch.rand(rows, 2, generator=generator) * 2 - 1
    discount = 0.9 * PRESENT.float()
    discount[1] = 0.0  # The second agent leaves with the first step.
    reward = torch.randn(rows, generator=generator) * PRESENT
    weight = torch.rand(STEPS, generator=generator).add(0.5).repeat_interleave(AGENTS) * PRESENT
    return TransitionBatch(observation, action, reward, discount, following, weight, torch.arange(rows))


@VALUES
def test_the_value_of_an_absent_agent_does_not_count(name: str) -> None:
    algorithm: Any = make_algorithm(name, SPACE, SPACES["discrete"], {"hidden_sizes": [8]}, seed=2)
    batch = batch_of("discrete")
    loss, errors = algorithm.loss(batch)
    other = batch._replace(action=torch.where(PRESENT, batch.action, (batch.action + 1) % 3))
    assert torch.equal(algorithm.loss(other)[1], errors)
    assert algorithm.loss(other)[0] == loss
    # A step counts although its first agent is absent.
    alone = batch._replace(reward=batch.reward + torch.tensor([0.0] * 9 + [0.0, 5.0, 0.0]))
    assert algorithm.loss(alone)[0] != loss


@VALUES
def test_the_next_value_of_an_agent_that_leaves_does_not_count(name: str) -> None:
    algorithm: Any = make_algorithm(name, SPACE, SPACES["discrete"], {"hidden_sizes": [8]}, seed=2)
    batch = batch_of("discrete")
    following = torch.where((batch.discount > 0).unsqueeze(1), batch.next_observation, 7.0)
    assert torch.equal(algorithm.loss(batch._replace(next_observation=following))[1], algorithm.loss(batch)[1])


@VALUES
def test_what_is_recorded_for_an_absent_agent_does_not_count(name: str) -> None:
    algorithm: Any = make_algorithm(name, SPACE, SPACES["discrete"], {"hidden_sizes": [8]}, seed=2)
    batch = batch_of("discrete")
    seen = torch.where(PRESENT.unsqueeze(1), batch.observation, 7.0)
    assert torch.equal(algorithm.loss(batch._replace(observation=seen))[1], algorithm.loss(batch)[1])


@CRITICS
def test_critics_and_actors_are_not_trained_on_absent_agents(name: str, kind: str) -> None:
    settings = {"hidden_sizes": [8], "batch_size": STEPS} | ({"policy_delay": 1} if name == "matd3" else {})
    batch, found, errors = batch_of(kind), list[Tensor](), list[Tensor]()
    slopes: list[Tensor] = []
    # The rewards of absent agents are 0; another one would change nothing.
    for reward in (batch.reward, torch.where(PRESENT, batch.reward, 50.0)):
        algorithm: Any = make_algorithm(name, SPACE, SPACES[kind], settings, seed=2)
        actor = algorithm._trained["actor"].network
        backward = actor.backward

        def recorded(gradient: Tensor, *others: Any, backward: Any = backward) -> Any:
            slopes.append(gradient.clone())
            return backward(gradient, *others)

        actor.backward = recorded
        noise = algorithm._noise(1, torch.Generator().manual_seed(1))[0]
        errors.append(algorithm._gradient_step(batch._replace(reward=reward), noise)[1])
        found.append(torch.cat([trained.flat for trained in algorithm._trained.values()]))
    assert torch.equal(*found)
    largest = (errors[0] * PRESENT).view(STEPS, AGENTS).amax(1).repeat_interleave(AGENTS)
    assert torch.equal(errors[0][~PRESENT], largest[~PRESENT]), "an absent agent is drawn as often as its team"
    assert (errors[0] > 0).all()
    assert (slopes[0][~PRESENT] == 0).all()
    assert (slopes[0][PRESENT] != 0).any(1).all()


def step_of(name: str, kind: str, shared: bool, batch: TransitionBatch) -> tuple[list[Tensor], list[Tensor]]:
    """Makes a gradient step; returns metrics, errors and all gradients and parameters, and the inputs of critics."""
    settings = {"hidden_sizes": [8], "batch_size": STEPS, "shared_reward": shared}
    settings |= {"policy_delay": 1} if name == "matd3" else {}
    algorithm: Any = make_algorithm(name, SPACE, SPACES[kind], settings, seed=2)
    seen, inputs_of = list[Tensor](), algorithm._critic_inputs

    def recorded(*arguments: Tensor) -> Tensor:
        seen.append(inputs_of(*arguments))
        return seen[-1].clone()

    algorithm._critic_inputs = recorded
    noise = algorithm._noise(1, torch.Generator().manual_seed(1))[0]
    results = [*algorithm._gradient_step(batch, noise)]
    for trained in algorithm._trained.values():
        results += [trained.optimizer.gradient.clone(), trained.flat.clone()]
    return results, seen


def with_others(batch: TransitionBatch, value: float, **changed: Tensor) -> TransitionBatch:
    """Other numbers where the rows given for a field are set."""
    fields = batch._asdict()
    for field, rows in changed.items():
        old = fields[field]
        other = (old + 1) % 3 if old.dtype is torch.int64 else torch.full_like(old, value)
        fields[field] = torch.where(rows if old.dim() == 1 else rows.unsqueeze(1), other, old)
    return TransitionBatch(**fields)


@pytest.mark.parametrize("shared", [False, True])
@CRITICS
def test_nothing_depends_on_what_is_recorded_for_absent_agents(name: str, kind: str, shared: bool) -> None:
    batch = batch_of(kind)
    leaving = batch.discount == 0
    expected, _ = step_of(name, kind, shared, batch)
    for value in (50.0, float("nan")):
        fields = dict.fromkeys(("observation", "action", "reward", "discount"), ~PRESENT)
        other = with_others(batch, value, **fields, next_observation=leaving)
        assert not torch.equal(other.action, batch.action)
        for found, wanted in zip(step_of(name, kind, shared, other)[0], expected, strict=True):
            assert torch.equal(found, wanted)
    # What a present agent sees or does matters.
    for field, rows in (("observation", PRESENT), ("action", PRESENT), ("next_observation", ~leaving)):
        assert not torch.equal(step_of(name, kind, shared, with_others(batch, 0.5, **{field: rows}))[0][1], expected[1])


@CRITICS
def test_critics_see_zeros_in_place_of_absent_agents(name: str, kind: str) -> None:
    batch = batch_of(kind)
    _, (following, now) = step_of(name, kind, False, batch)
    for inputs, present in ((now, PRESENT), (following, batch.discount > 0)):
        blocks = inputs[:, :-AGENTS].view(STEPS, AGENTS, AGENTS, -1)
        for agent in range(AGENTS):
            for ahead in range(AGENTS):
                seen = present.view(STEPS, AGENTS)[:, (agent + ahead) % AGENTS]
                block = blocks[:, agent, ahead]
                assert not block[~seen].any()
                assert (block[seen] != 0).any(1).all()
