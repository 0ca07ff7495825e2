"""A user's evaluation function: its arguments, its valid results, and the score that is computed from them."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from agentpod.roles.evaluation_function import FunctionPlay, LengthCounter, numbers
from agentpod.roles.evaluator import Episodes, score
from podrace.errors import DataLoss, FailedPrecondition, Internal, InvalidArgument
from podrace.plugins.server import LoadedFunction
from simulators import make
from simulators.base import Report, Space, Step

EXAMPLE = Path(__file__).parents[4] / "examples/custom/evaluator.py"


class LeftActor:
    """Always pushes to the left, and counts the episodes whose end is reported to it."""

    def __init__(self) -> None:
        self.ended_episodes = 0

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(observation), dtype=torch.int64)

    def reset(self, done: torch.Tensor) -> None:
        self.ended_episodes += int(done.sum())

    def begin(self, batch: int) -> None:
        pass


def constant(simulator, actor, episodes, seed):
    return [float(seed)] * episodes


def exiting(simulator, actor, episodes, seed):
    sys.exit(5)


async def play_of(path: str) -> FunctionPlay:
    function = LoadedFunction(f"python:{path}")
    await function.load()
    return FunctionPlay(function)


async def test_a_function_gets_the_simulator_the_actor_the_episodes_and_the_seed():
    simulator = make("cartpole", 2)
    played = (await play_of(f"{__name__}:constant"))(simulator, LeftActor(), 3, 7)
    assert played.returns.tolist() == [7.0, 7.0, 7.0]
    assert played.lengths.tolist() == [0], "nothing was stepped"


def test_the_lengths_are_those_of_the_episodes_that_ended():
    counter, actor = LengthCounter(make("cartpole", 3)), LeftActor()
    observation = counter.reset(1)
    for _ in range(25):
        step = counter.step(actor.act(observation))
        observation = step.observation
        actor.reset(step.terminated)
    assert len(counter.lengths) == actor.ended_episodes > 3
    # A pole that is always pushed to one side falls within a dozen steps.
    assert set(counter.lengths) <= set(range(7, 13))
    counter.reset(2)
    counter.lengths.clear()
    counter.step(actor.act(observation))
    assert not counter.lengths, "a reset counted an unfinished episode as finished"


class Pair:
    """Environments of two agents that end after ten steps; the second agent leaves after two."""

    observation_space = Space("continuous", (1,), torch.float32, agents=("one", "other"))
    action_space = Space("discrete", (), torch.int64, n=2)
    count = 4

    def reset(self, seed: int) -> torch.Tensor:
        self.number = 0
        return torch.zeros(self.count, 1)

    def step(self, action: torch.Tensor) -> Step:
        self.number += 1
        ended = torch.tensor([self.number == 10, self.number >= 2] * 2)
        return Step(torch.zeros(4, 1), torch.ones(4), ended, torch.zeros(4, dtype=torch.bool), torch.zeros(4, 1))

    def report(self) -> Report:
        return Report()

    def close(self) -> None:
        pass


def test_the_episode_of_a_team_is_counted_once_and_lasts_until_its_last_agent_ends():
    counter = LengthCounter(Pair())
    counter.reset(1)
    for _ in range(10):
        counter.step(torch.zeros(4, dtype=torch.int64))
    assert counter.lengths == [10, 10]


@pytest.mark.parametrize("returned", [[1, 2.5], (1, 2.5), np.array([1, 2.5]), torch.tensor([1, 2.5])])
def test_lists_arrays_and_tensors_of_numbers_are_accepted(returned):
    assert numbers(returned, 2).tolist() == [1.0, 2.5]
    assert numbers(returned, 2).dtype == torch.float64


@pytest.mark.parametrize("returned", [None, "abc", 3.0, {"a": 1}, [[1.0], [2.0]], ["x"], object()])
def test_anything_but_a_row_of_numbers_is_refused_in_one_line(returned):
    with pytest.raises(InvalidArgument, match=r"^the function returned \w+: expected one number for each episode$"):
        numbers(returned, 1)


def test_too_few_numbers_and_numbers_that_are_not_finite_are_refused():
    with pytest.raises(DataLoss, match="returned 2 numbers for 3 episodes"):
        numbers([1.0, 2.0], 3)
    with pytest.raises(DataLoss, match="returned 0 numbers for 1 episodes"):
        numbers([], 1)
    with pytest.raises(DataLoss, match="not finite"):
        numbers([1.0, float("nan")], 2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere:f", "module 'nowhere' cannot be imported"),
        (f"{__name__}:nothing", "has no function 'nothing'"),
        ("no path", "expected python:module:function"),
    ],
)
async def test_a_function_that_cannot_be_imported_fails_every_call_with_the_reason(path, message):
    play = await play_of(path)
    with pytest.raises(FailedPrecondition, match=re.escape(message)):
        play(make("cartpole", 1), LeftActor(), 1, 0)


async def test_a_function_that_exits_fails_its_call_only():
    play = await play_of(f"{__name__}:exiting")
    with pytest.raises(Internal, match="the function raised SystemExit: 5"):
        play(make("cartpole", 1), LeftActor(), 1, 0)


def test_the_example_scores_the_mean_of_the_worst_quarter(monkeypatch):
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    returns = torch.tensor([5.0, 1.0, 9.0, 3.0, 7.0, 8.0, 6.0, 4.0], dtype=torch.float64)
    monkeypatch.setattr(example, "play", lambda *_: Episodes(returns, torch.ones(8)))
    # 0.25-quantile of 1, 3, 4, ..., 9: 3.75. Below it, by 2.75 and 0.75; (2.75 + 0.75) / 0.25 / 8 = 1.75.
    values = example.evaluate(make("cartpole", 2), LeftActor(), 8, 0)
    evaluation = score(Episodes(values, torch.ones(8)))
    assert evaluation.mean_return == pytest.approx(3.75 - 1.75)
    assert evaluation.mean_return == pytest.approx((1.0 + 3.0) / 2)
    assert evaluation.episodes == 8
