"""Teams with action masks: no agent takes an invalid action, and no update counts the value of one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from learning import train
from torch import Tensor

from agentpod.algorithms import make as make_algorithm
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.actors import PolicyActor
from agentpod.roles.episodes import play
from podrace.spaces.entries import MASK, VECTOR, Entry
from simulators.base import Report, Space, Step

AGENTS, CHOICES, EPISODE = 2, 4, 5
ENTRIES = (Entry("target", VECTOR, (CHOICES,)), Entry("action_mask", MASK, (CHOICES,)))
TEAM = Space("composite", (2 * CHOICES,), torch.float32, entries=ENTRIES, agents=("left", "right"))
ACTIONS = Space("discrete", (), torch.int64, n=CHOICES)
ON_ROLLOUTS = {"horizon": 16, "minibatch_size": 128, "learning_rate": 5e-3, "hidden_sizes": [32], "discount": 0.3}
ON_REPLAY = {
    **{"horizon": 8, "batch_size": 64, "learning_rate": 3e-3, "hidden_sizes": [32], "discount": 0.3},
    **{"exploration_steps": 3000, "warmup_steps": 256, "target_rate": 0.05},
}
SETTINGS: dict[str, dict[str, Any]] = {"ippo": ON_ROLLOUTS, "mappo": ON_ROLLOUTS, "vdn": ON_REPLAY, "qmix": ON_REPLAY}


class Picking:
    """Each agent picks the number that it sees, if its mask allows it, else the next one; the team shares the reward.

    With `leaves`, the second agent leaves after its first step. Its observation is then 0, its mask included.
    """

    observation_space, action_space = TEAM, ACTIONS

    def __init__(self, environments: int, *, leaves: bool = False) -> None:
        self.count = environments * AGENTS
        self._leaves, self._generator = leaves, torch.Generator()

    def reset(self, seed: int) -> Tensor:
        self._generator.manual_seed(seed)
        self._steps = 0
        return self._observe()

    def _observe(self) -> Tensor:
        target, refused = torch.randint(CHOICES, (2, self.count), generator=self._generator)
        rows = torch.zeros(self.count, 2 * CHOICES)
        lanes = torch.arange(self.count)
        rows[lanes, target] = 1
        rows[:, CHOICES:] = 1
        rows[lanes, CHOICES + refused] = 0
        self._best = torch.where(target == refused, (target + 1) % CHOICES, target)
        self._absent = (lanes % AGENTS == 1) & (self._leaves and self._steps > 0)
        rows[self._absent] = 0
        self._valid = rows[:, CHOICES:] > 0
        return rows

    def step(self, action: Tensor) -> Step:
        valid = self._valid.gather(1, action.unsqueeze(1)).squeeze(1)
        assert (valid | self._absent).all(), "an invalid action was taken"
        right = ((action == self._best) & ~self._absent).float().view(-1, AGENTS)
        reward = right.mean(1, keepdim=True).expand(-1, AGENTS).flatten()
        self._steps += 1
        over = self._steps == EPISODE
        terminated = self._absent | over
        if self._leaves and self._steps == 1:
            terminated = torch.arange(self.count) % AGENTS == 1
        final = torch.zeros(self.count, 2 * CHOICES)
        self._steps %= EPISODE
        return Step(self._observe(), reward, terminated, torch.zeros_like(terminated), final)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass


def picking(count: int) -> Picking:
    return Picking(count)


def picking_alone_after_a_step(count: int) -> Picking:
    return Picking(count, leaves=True)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SETTINGS))
@pytest.mark.parametrize("factory", [picking, picking_alone_after_a_step])
def test_a_team_learns_and_no_agent_takes_an_invalid_action(name: str, factory: Callable[[int], Picking]) -> None:
    id = f"python:{__name__}:{factory.__name__}"
    trained = train(name, id, SETTINGS[name], 1, 16_000)
    assert torch.isfinite(trained.policy.flat).all()
    assert trained.policy.flat.abs().max() < 100.0
    simulator = factory(32)
    actor = PolicyActor(trained.policy, simulator.count, torch.Generator(), greedy=True)
    # The agents of the best team get 10 together, and 6 where one leaves; valid actions at random get a third of it.
    assert float(play(simulator, actor, 32, 1).returns.mean()) > (8.0 if factory is picking else 4.8)


@pytest.mark.long
@pytest.mark.parametrize("name", ["vdn", "qmix"])
@pytest.mark.parametrize("factory", [picking, picking_alone_after_a_step])
def test_no_agent_of_a_recurrent_team_takes_an_invalid_action(name: str, factory: Callable[[int], Picking]) -> None:
    settings = {**ON_REPLAY, "hidden_sizes": [32, 32], "recurrent_size": 16}
    trained = train(name, f"python:{__name__}:{factory.__name__}", settings, 1, 4_000)
    assert torch.isfinite(trained.policy.flat).all()
    assert trained.policy.flat.abs().max() < 100.0
    simulator = factory(32)
    actor = PolicyActor(trained.policy, simulator.count, torch.Generator(), greedy=True)
    # Valid actions at random get a third of 10, or of 6.
    assert float(play(simulator, actor, 32, 1).returns.mean()) > (3.4 if factory is picking else 2.1)


@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_an_invalid_next_action_is_not_chosen_and_an_agent_without_a_valid_one_is_worth_nothing(name: str) -> None:
    algorithm: Any = make_algorithm(name, TEAM, ACTIONS, {"hidden_sizes": [8]}, seed=2)
    batch = masked_batch()
    loss, error = algorithm.loss(batch)
    values, state = reference_values(algorithm, batch.observation), batch.observation.view(-1, AGENTS * 2 * CHOICES)
    own = values.gather(1, batch.action.unsqueeze(1)).squeeze(1) * valid(batch.observation).any(1)
    following = reference_values(algorithm, batch.next_observation).masked_fill(~valid(batch.next_observation), -1e9)
    best = torch.where(valid(batch.next_observation).any(1), following.amax(1), 0.0)
    next_state = batch.next_observation.view(state.shape)
    # The targets are still equal to the networks.
    target = batch.reward.view(-1, AGENTS).sum(1) + 0.9 * algorithm.mix(best.view(-1, AGENTS), next_state)
    expected = algorithm.mix(own.view(-1, AGENTS), state) - target
    torch.testing.assert_close(error[::AGENTS], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(loss, expected.square().mean(), atol=1e-5, rtol=1e-4)


def valid(rows: Tensor) -> Tensor:
    return rows[:, CHOICES:] > 0


def masked_batch() -> TransitionBatch:
    """Four steps; in the first, the second agent has left, and so it has in the next step of the third."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(2, 4 * AGENTS, 2 * CHOICES, generator=generator)
    rows[:, :, CHOICES:] = (rows[:, :, CHOICES:] > 0).float()
    rows[:, :, -1] = 1
    rows[0, 1] = rows[1, 1] = rows[1, 5] = 0
    ones = torch.ones(4 * AGENTS)
    action = torch.full((4 * AGENTS,), CHOICES - 1)
    reward = torch.randn(4 * AGENTS, generator=generator)
    return TransitionBatch(rows[0], action, reward, 0.9 * ones, rows[1], ones, torch.arange(4 * AGENTS))


def reference_values(algorithm: Any, rows: Tensor) -> Tensor:
    """Action values from the weights of the published policy: an encoder of the entry `target`, and one layer."""
    tensors = algorithm.policy.tensors()
    hidden = (rows[:, :CHOICES] @ tensors["actor.encoder.0.0.weight"].T + tensors["actor.encoder.0.0.bias"]).relu()
    return hidden @ tensors["actor.0.weight"].T + tensors["actor.0.bias"]
