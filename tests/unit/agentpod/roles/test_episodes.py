"""An evaluation episode is named by a seed and a number: it is the same for every policy and every request."""

import threading

import pytest
import torch
from team_worlds import Leaving
from torch import Tensor

from agentpod.models.actors import PolicyActor
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles import episodes as module
from agentpod.roles.episodes import POLL_STEPS, BatchTally, merged_report, next_slice, play, play_in_slices
from podrace.errors import Cancelled, DataLoss
from simulators import Report, Space, Step, make

LANES = 4


class Countdown:
    """Lane i of a batch ends its first episode after `lengths[i]` steps; each step is worth the first observation.

    The first observation is a function of (seed, lane), so a return identifies the episode that was played.
    """

    observation_space = Space("continuous", (1,), torch.float32)
    action_space = Space("discrete", (), torch.int64, n=2)

    def __init__(self, lengths: list[int]) -> None:
        self.count, self._lengths = len(lengths), torch.tensor(lengths)
        self.resets: list[int] = []

    def reset(self, seed: int) -> Tensor:
        self.resets.append(seed)
        self._steps = torch.zeros(self.count, dtype=torch.int64)
        generator = torch.Generator().manual_seed(seed)
        self._value = torch.randint(1, 1000, (self.count,), generator=generator).float()
        return self._value.unsqueeze(1)

    def step(self, action: Tensor) -> Step:
        self._steps += 1
        done = self._steps % self._lengths == 0
        nothing = torch.zeros_like(done)
        # What follows the first episode is worth another number, which must not count.
        reward = torch.where(self._steps <= self._lengths, self._value, torch.tensor(1e6))
        return Step(self._value.unsqueeze(1), reward, done, nothing, self._value.unsqueeze(1))

    def report(self) -> Report:
        return Report({"resets": float(len(self.resets))}, {"trace": [float(self.resets[-1])]})

    def close(self) -> None:
        pass


class Idle:
    """Takes action 0."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def act(self, observation: Tensor) -> Tensor:
        return torch.zeros(len(observation), dtype=torch.int64)

    def reset(self, done: Tensor) -> None:
        pass

    def begin(self, batch: int) -> None:
        self.batches.append(batch)


def returns(lengths: list[int], count: int, first: int = 0) -> list[float]:
    return play(Countdown(lengths), Idle(), count, 7, first_episode=first).returns.tolist()


def test_each_lane_plays_one_episode_of_a_batch():
    # 3 lanes, 5 episodes: the second batch has two. An episode of n steps is worth n times its first observation.
    played = play(simulator := Countdown([1, 2, 3]), Idle(), 5, 7)
    firsts = []
    for seed in simulator.resets:
        firsts += Countdown([1, 2, 3]).reset(seed).squeeze(1).tolist()
    lengths = [1, 2, 3, 1, 2]
    assert len(simulator.resets) == 2
    assert played.returns.tolist() == [length * first for length, first in zip(lengths, firsts, strict=False)]
    assert played.lengths.tolist() == lengths


def test_short_episodes_are_not_favored():
    # Taking the first two episodes that end would take two of lane 0.
    assert play(Countdown([1, 5]), Idle(), 2, 7).lengths.tolist() == [1, 5]


@pytest.mark.parametrize(("count", "first"), [(1, 0), (3, 0), (4, 0), (9, 0), (4, 4), (5, 4), (3, 5), (2, 2)])
def test_an_episode_does_not_depend_on_how_many_are_asked_for_nor_on_the_first(count, first):
    lengths = [2, 1, 4, 3]
    assert returns(lengths, count, first) == returns(lengths, 12)[first : first + count]


def test_an_episode_does_not_depend_on_how_long_others_take():
    slow, fast = play(Countdown([9, 1, 9, 9]), Idle(), 8, 7), play(Countdown([1, 1, 1, 1]), Idle(), 8, 7)
    assert slow.returns[1::4].tolist() == fast.returns[1::4].tolist()


def test_another_seed_gives_other_episodes():
    assert returns([1, 1], 2) != play(Countdown([1, 1]), Idle(), 2, 8).returns.tolist()


@pytest.mark.long
def test_lanes_that_were_not_asked_for_are_not_waited_for():
    simulator = Countdown([2, 10_000])
    assert play(simulator, Idle(), 1, 7).lengths.tolist() == [2]
    assert play(simulator, Idle(), 2, 7, first_episode=0).lengths.tolist() == [2, 10_000]


def test_the_actor_is_notified_of_each_batch():
    actor = Idle()
    play(Countdown([1, 1]), actor, 3, 7, first_episode=2)
    assert actor.batches == [1, 2]


def test_sampled_actions_repeat_for_each_episode():
    def sampled(count: int, first: int) -> list[float]:
        simulator = make("pendulum", LANES, {"max_episode_steps": 5})
        policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec((4,), head="stochastic"))
        for tensor in policy.tensors().values():
            tensor.fill_(0.05)
        actor = PolicyActor(policy, LANES, torch.Generator().manual_seed(3), greedy=False)
        with torch.no_grad():
            return play(simulator, actor, count, 7, first_episode=first).returns.tolist()

    whole = sampled(3 * LANES, 0)
    assert sampled(LANES, LANES) == whole[LANES : 2 * LANES]
    assert len(set(whole)) == 3 * LANES


def test_an_endless_episode_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "MAXIMUM_EPISODE_STEPS", 10)
    with pytest.raises(DataLoss, match="has not ended after 10 steps"):
        play(Countdown([3, 11]), Idle(), 2, 7)
    # Only episodes that were asked for count.
    assert play(Countdown([3, 11]), Idle(), 1, 7).lengths.tolist() == [3]


def test_a_return_that_is_not_finite_is_an_error():
    simulator = Countdown([1])
    simulator.step = lambda action: Step(  # type: ignore[method-assign]
        torch.zeros(1, 1), torch.tensor([torch.inf]), torch.tensor([True]), torch.tensor([False]), torch.zeros(1, 1)
    )
    with pytest.raises(DataLoss, match="not finite"):
        play(simulator, Idle(), 1, 7)


def test_a_cancelled_evaluation_stops():
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        play(Countdown([1]), Idle(), 1, 7, cancelled=cancelled)


def test_a_tally_counts_the_first_episode_of_each_lane_only():
    tally = BatchTally(torch.tensor([True, True]))
    ends = [[True, False], [True, False], [False, True]]
    for end in ends:
        done = torch.tensor(end)
        nothing = torch.zeros(2, 1)
        assert not tally.complete
        tally.add(Step(nothing, torch.tensor([1.0, 10.0]), done, torch.zeros_like(done), nothing))
    assert tally.complete
    assert tally.returns.tolist() == [1.0, 30.0]
    assert tally.lengths.tolist() == [1, 3]


@pytest.mark.parametrize("poll_steps", [1, 3, 8])
def test_steps_between_two_polls_of_a_gpu_change_nothing(poll_steps: int, monkeypatch: pytest.MonkeyPatch):
    steps = []

    def tally(wanted, device, agents):
        return BatchTally(wanted, device, poll_steps, agents)

    exact = play(Countdown([2, 5, 3]), Idle(), 7, 3, first_episode=1)
    monkeypatch.setattr(module, "BatchTally", tally)
    simulator = Countdown([2, 5, 3])
    step = simulator.step
    simulator.step = lambda action: steps.append(1) or step(action)  # type: ignore[method-assign, func-returns-value]
    polled = play(simulator, Idle(), 7, 3, first_episode=1)
    assert torch.equal(polled.returns, exact.returns)
    assert torch.equal(polled.lengths, exact.lengths)
    batches = len(simulator.resets)
    assert len(steps) == batches * -(-5 // poll_steps) * poll_steps


def test_a_batch_is_examined_at_every_step_on_a_processor_only(monkeypatch: pytest.MonkeyPatch):
    examined = []
    for device in ("cpu", "meta"):
        tally = BatchTally(torch.tensor([True]), device)
        monkeypatch.setattr(tally, "_ended", lambda device=device: bool(examined.append(device)))
        row = torch.zeros(1, device=device)
        for _ in range(2 * POLL_STEPS):
            assert not tally.complete
            tally.add(Step(row, row, row.bool(), row.bool(), row))
    assert (examined.count("cpu"), examined.count("meta")) == (2 * POLL_STEPS, 2)


def test_reports_of_batches_are_averaged_by_episodes():
    reports = [Report({"a": 1.0}, {"t": [1.0]}), Report({"a": 4.0, "b": 2.0})]
    merged = merged_report(reports, [[True, True], [True, False]])
    assert merged.metrics == {"a": 2.0, "b": 2.0}
    assert merged.traces == {"t": [1.0]}


def test_measures_of_single_episodes_are_those_of_the_episodes_that_were_asked_for():
    reports = [Report(episode_metrics={"m": [1.0, 2.0]}), Report(episode_metrics={"m": [3.0, 4.0]})]
    assert merged_report(reports, [[False, True], [True, True]]).episode_metrics == {"m": [2.0, 3.0, 4.0]}


def test_the_measures_of_an_episode_belong_to_it_however_it_is_requested():
    simulator = make("stocks", LANES, {"split": "validation", "episode_days": 6, "folds": 3, "train_end": "2010-06-01"})
    policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec((8,)))
    actor = PolicyActor(policy, LANES, torch.Generator(), greedy=True)
    with torch.no_grad():
        whole = play(simulator, actor, 12, 3)
        part = play(simulator, actor, 5, 3, first_episode=2)
    assert {name: values[2:7] for name, values in whole.measures.items()} == part.measures
    assert set(whole.measures["fold"]) == {1.0, 2.0, 3.0}
    # The account begins with 1e6, and the reward is 1e-4 of the gain.
    gains = [100 * value for value in whole.measures["cumulative_return"]]
    assert whole.returns.tolist() == pytest.approx(gains, rel=1e-3, abs=1e-6)


def test_the_return_of_a_team_is_the_sum_over_its_agents_until_the_last_one_leaves():
    played = play(Leaving(4), Idle(), 6, 7)
    # 1 for one step, 10 for two, 100 for three.
    assert played.returns.tolist() == [321.0] * 6
    assert played.lengths.tolist() == [3] * 6
    assert {name: set(values) for name, values in played.measures.items()} == {
        "return.first": {1.0},
        "return.second": {20.0},
        "return.third": {300.0},
    }


def test_an_evaluation_in_slices_plays_the_same_episodes():
    simulator, clock = Countdown([2, 1, 4, 3]), iter(range(100))
    slices = play_in_slices(simulator, Idle(), 6, 7, slice_seconds=2, clock=lambda: next(clock))
    pauses = 0
    while (played := next_slice(slices)) is None:
        pauses += 1
    # Six steps, each of which takes a second.
    assert pauses == 3
    assert played.returns.tolist() == returns([2, 1, 4, 3], 6)
