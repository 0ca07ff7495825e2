"""Tests where `collect` writes everything that a simulator returns. The data identifies the step it comes from."""

import math

import pytest
import torch
from team_worlds import Leaving
from torch import Tensor

from agentpod.experience.replay_layout import replay_fields
from agentpod.experience.rollout import CollectResult, Lanes, collect, rollout_fields
from agentpod.experience.staging import Staging
from agentpod.models.distributions import require_distribution
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.seeding import derive_generator
from podrace.errors import DataLoss
from simulators.base import Report, Space, Step

UNTOUCHED = -77.0


class Countdown:
    """Episodes of fixed lengths; an observation is [lane, episode, step of the episode], a reward lane + 1.

    Odd lanes terminate, even lanes are truncated. Records the actions that it receives.
    """

    observation_space = Space("continuous", (3,), torch.float32)

    def __init__(self, lengths: tuple[int, ...], action_space: Space, first_lane: int = 0) -> None:
        self.action_space = action_space
        self.count = len(lengths)
        self.actions: list[Tensor] = []
        self._length = torch.tensor(lengths)
        self._lane = torch.arange(first_lane, first_lane + self.count)
        self._episode = torch.zeros(self.count, dtype=torch.int64)
        self._step = torch.zeros(self.count, dtype=torch.int64)

    def _update_statistics(self) -> Tensor:
        return torch.stack((self._lane, self._episode, self._step), dim=1).float()

    def reset(self, seed: int) -> Tensor:
        return self._update_statistics()

    def step(self, action: Tensor) -> Step:
        self.actions.append(action.clone())
        self._step += 1
        final_observation, done = self._update_statistics(), self._step == self._length
        self._episode += done
        self._step[done] = 0
        odd = self._lane % 2 == 1
        return Step(self._update_statistics(), self._lane + 1.0, done & odd, done & ~odd, final_observation)

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass


DISCRETE = Space("discrete", (), torch.int64, n=3)
CONTINUOUS = Space("continuous", (2,), torch.float32, low=(-0.1, -0.1), high=(0.1, 0.1))


def new_policy(action_space: Space) -> Policy:
    policy = Policy(Countdown.observation_space, action_space, NetworkSpec((8,)))
    policy.initialize(torch.Generator().manual_seed(0))
    return policy


def new_rollout(action_space: Space, horizon: int, count: int) -> dict[str, Tensor]:
    fields = rollout_fields(Countdown.observation_space, action_space, horizon, count)
    return {
        name: torch.full(field.shape, 0 if field.dtype == torch.bool else UNTOUCHED, dtype=field.dtype)
        for name, field in fields.items()
    }


def filled(
    lengths: tuple[int, ...] = (3, 4), horizon: int = 10, action_space: Space = DISCRETE
) -> tuple[dict[str, Tensor], CollectResult, Countdown]:
    simulator, rollout = Countdown(lengths, action_space), new_rollout(action_space, horizon, len(lengths))
    lanes = Lanes.start(simulator.reset(0))
    result = collect(simulator, new_policy(action_space), rollout, lanes, torch.Generator().manual_seed(0))
    return rollout, result, simulator


def test_all_steps_are_counted_over_all_environments() -> None:
    _, result, _ = filled(lengths=(3, 4, 5), horizon=7)
    assert result.steps == 21


def test_every_observation_is_in_the_row_of_its_action() -> None:
    rollout, result, _ = filled()
    for lane, length in enumerate((3, 4)):
        expected = [[lane, t // length, t % length] for t in range(11)]
        assert rollout["observation"][:, lane].tolist() == expected
    assert torch.equal(result.lanes.observation, rollout["observation"][-1])


def test_terminations_and_truncations_are_distinguished() -> None:
    rollout, _, _ = filled()
    assert rollout["truncated"].nonzero().tolist() == [[2, 0], [5, 0], [8, 0]]
    assert rollout["terminated"].nonzero().tolist() == [[3, 1], [7, 1]]
    assert rollout["reward"].eq(torch.tensor([1.0, 2.0])).all()


def test_final_observations_are_written_only_where_truncated() -> None:
    rollout, _, _ = filled()
    final_observation, truncated = rollout["final_observation"], rollout["truncated"]
    assert final_observation[truncated].tolist() == [[0, 0, 3], [0, 1, 3], [0, 2, 3]]
    assert final_observation[~truncated].eq(UNTOUCHED).all()


def test_finished_episodes_are_reported_in_order_with_return_and_length() -> None:
    _, result, _ = filled()
    assert result.episode_returns.tolist() == [3.0, 8.0, 3.0, 8.0, 3.0]
    assert result.episode_lengths.tolist() == [3, 4, 3, 4, 3]


def test_episodes_continue_across_rollouts() -> None:
    simulator, policy = Countdown((5, 7), DISCRETE), new_policy(DISCRETE)
    lanes, lengths = Lanes.start(simulator.reset(0)), []
    for k in range(8):
        rollout = new_rollout(DISCRETE, 3, 2)
        before = lanes.observation
        result = collect(simulator, policy, rollout, lanes, derive_generator("cpu", 0, k))
        assert torch.equal(rollout["observation"][0], before)
        lanes = result.lanes
        lengths += result.episode_lengths.tolist()
    assert sorted(lengths) == [5, 5, 5, 5, 7, 7, 7]


@pytest.mark.parametrize("action_space", [DISCRETE, CONTINUOUS], ids=lambda space: space.kind)
def test_actions_and_log_probabilities_equal_those_of_single_steps(action_space: Space) -> None:
    rollout, _, _ = filled(action_space=action_space)
    policy = new_policy(action_space)
    noise = policy.noise((10, 2), torch.Generator().manual_seed(0))
    for t in range(10):
        outputs = policy.outputs(rollout["observation"][t])
        action = policy.act(rollout["observation"][t], noise[t])
        assert torch.equal(rollout["action"][t], action)
        log_prob = require_distribution(policy.head).log_prob(outputs, action)
        torch.testing.assert_close(rollout["log_prob"][t], log_prob)


def test_the_environment_gets_bounded_actions_and_the_rollout_the_sampled_ones() -> None:
    rollout, _, simulator = filled(action_space=CONTINUOUS)
    given = torch.stack(simulator.actions)
    assert given.abs().max() <= 0.1
    assert rollout["action"].abs().max() > 1.0
    torch.testing.assert_close(given, rollout["action"].clamp(-1, 1) * 0.1)


def test_workers_write_only_their_own_lanes() -> None:
    policy, wide = new_policy(DISCRETE), new_rollout(DISCRETE, 6, 5)
    pieces = {0: (3, 4), 2: (5, 2)}
    for first, lengths in pieces.items():
        alone = new_rollout(DISCRETE, 6, len(lengths))
        for rollout in (alone, {name: tensor[:, first : first + 2] for name, tensor in wide.items()}):
            simulator = Countdown(lengths, DISCRETE, first_lane=first)
            generator = derive_generator("cpu", 0, "act", first)
            collect(simulator, policy, rollout, Lanes.start(simulator.reset(0)), generator)
        assert all(torch.equal(wide[name][:, first : first + 2], tensor) for name, tensor in alone.items())
    assert wide["observation"][:, 4].eq(UNTOUCHED).all()
    assert wide["log_prob"][:, 4].eq(UNTOUCHED).all()


def test_the_seed_determines_the_rollout() -> None:
    def actions(seed: int) -> Tensor:
        simulator, rollout = Countdown((3, 4), DISCRETE), new_rollout(DISCRETE, 16, 2)
        lanes = Lanes.start(simulator.reset(0))
        collect(simulator, new_policy(DISCRETE), rollout, lanes, derive_generator("cpu", seed, "act", 0, 0))
        return rollout["action"]

    assert torch.equal(actions(1), actions(1))
    assert not torch.equal(actions(1), actions(2))


class Broken(Countdown):
    """Returns a value that is not finite in lane 1 at the fourth step, by default the last one of a cut episode."""

    def __init__(self, field: str, value: float, length: int = 4) -> None:
        super().__init__((50, length), DISCRETE, first_lane=1)
        self._field, self._value = field, value

    def step(self, action: Tensor) -> Step:
        step = super().step(action)
        if len(self.actions) == 4:
            getattr(step, self._field)[1] = self._value
        return step


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("field", "row"), [("observation", 4), ("reward", 3), ("final_observation", 3)])
def test_values_that_are_not_finite_are_refused_with_field_lane_and_row(field: str, row: int, value: float) -> None:
    simulator, rollout = Broken(field, value), new_rollout(DISCRETE, 8, 2)
    lanes = Lanes.start(simulator.reset(0))
    with pytest.raises(DataLoss, match=f"environment 1 returned a {field} that is not finite at row {row}"):
        collect(simulator, new_policy(DISCRETE), rollout, lanes, torch.Generator())


def test_final_observations_that_nothing_reads_may_be_anything() -> None:
    simulator, rollout = Broken("final_observation", math.nan, length=50), new_rollout(DISCRETE, 8, 2)
    rollout["final_observation"].fill_(math.nan)
    collect(simulator, new_policy(DISCRETE), rollout, Lanes.start(simulator.reset(0)), torch.Generator())


@pytest.mark.parametrize("field", ["observation", "final_observation"])
def test_what_follows_a_replay_segment_is_refused_if_it_is_not_finite(field: str) -> None:
    simulator = Broken(field, math.nan, length=4 if field == "final_observation" else 50)
    fields = replay_fields(Countdown.observation_space, DISCRETE, 4, 2)
    rows = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in fields.items()}
    rows["final_observation"].fill_(math.nan)
    with pytest.raises(DataLoss, match="environment 1 returned a final_observation that is not finite at row 3"):
        collect(simulator, new_policy(DISCRETE), rows, Lanes.start(simulator.reset(0)), torch.Generator())


def test_observations_have_one_more_row_than_steps() -> None:
    fields = rollout_fields(Space("continuous", (4, 5), torch.uint8), CONTINUOUS, horizon=6, count=3)
    assert {name: field.shape for name, field in fields.items()} == {
        "observation": (7, 3, 4, 5),
        "action": (6, 3, 2),
        "log_prob": (6, 3),
        "reward": (6, 3),
        "terminated": (6, 3),
        "truncated": (6, 3),
        "final_observation": (6, 3, 4, 5),
    }
    assert fields["observation"].dtype == fields["final_observation"].dtype == torch.uint8
    assert all(field.name == name for name, field in fields.items())


def test_a_rollout_that_is_staged_on_another_device_ends_in_the_slot() -> None:
    slots = []
    for staging in (Staging(torch.device("cpu")), Staging(torch.device("cpu"), always=True)):
        slot, simulator = new_rollout(CONTINUOUS, horizon=6, count=2), Countdown((3, 4), CONTINUOUS)
        lanes, generator = Lanes.start(simulator.reset(0)), derive_generator("cpu", 1, "act")
        for _ in range(2):
            rollout = staging.of(slot)
            assert (rollout is slot) is not staging._always
            lanes = collect(simulator, new_policy(CONTINUOUS), rollout, lanes, generator).lanes
            if finish := staging.copy_to(slot):
                finish()
        slots.append(slot)
    direct, staged = slots
    truncated = direct["truncated"]
    for name in direct.keys() - {"final_observation"}:
        assert torch.equal(direct[name], staged[name]), name
    assert torch.equal(direct["final_observation"][truncated], staged["final_observation"][truncated])


def test_the_episodes_of_a_team_end_when_its_last_agent_leaves() -> None:
    simulator = Leaving(2)
    policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec(hidden_sizes=()))
    fields = rollout_fields(simulator.observation_space, simulator.action_space, 4, simulator.count)
    rollout = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    lanes = Lanes.start(simulator.reset(0), 0, agents=3)
    first = collect(simulator, policy, rollout, lanes, torch.Generator())
    second = collect(simulator, policy, rollout, first.lanes, torch.Generator())
    # Steps are those of environments. Episodes of 3 steps: the second ends in the second rollout.
    assert (first.steps, second.steps) == (8, 8)
    assert (first.episode_returns.tolist(), first.episode_lengths.tolist()) == ([321.0, 321.0], [3, 3])
    assert (second.episode_returns.tolist(), second.episode_lengths.tolist()) == ([321.0, 321.0], [3, 3])
