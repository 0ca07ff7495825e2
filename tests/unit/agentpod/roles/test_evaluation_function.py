"""A user's evaluation function: what it is given, what it may return, and that the score stays the house's."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from agentpod.roles.evaluation_function import FunctionPlay, Watched, numbers
from agentpod.roles.evaluator import Episodes, score
from podrace.errors import DataLoss, InvalidArgument
from simulators import make

EXAMPLE = Path(__file__).parents[4] / "examples/custom/evaluator.py"


class Still:
    """Always pushes to the left, and counts the episodes it was told of."""

    def __init__(self) -> None:
        self.forgotten = 0

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(observation), dtype=torch.int64)

    def reset(self, done: torch.Tensor) -> None:
        self.forgotten += int(done.sum())


def constant(simulator, actor, episodes, seed):
    return [float(seed)] * episodes


def test_a_function_is_given_the_simulator_the_actor_the_episodes_and_the_seed():
    simulator = make("cartpole", 2)
    played = FunctionPlay(f"{__name__}:constant")(simulator, Still(), 3, 7)
    assert played.returns.tolist() == [7.0, 7.0, 7.0]
    assert played.lengths.tolist() == [0], "nothing was stepped"


def test_the_lengths_are_those_of_the_episodes_that_ended():
    watched, actor = Watched(make("cartpole", 3)), Still()
    observation = watched.reset(1)
    for _ in range(25):
        step = watched.step(actor.act(observation))
        observation = step.observation
        actor.reset(step.terminated)
    assert len(watched.lengths) == actor.forgotten > 3
    # A pole that is always pushed to one side falls within a dozen steps.
    assert set(watched.lengths) <= set(range(7, 13))
    watched.reset(2)
    watched.lengths.clear()
    watched.step(actor.act(observation))
    assert not watched.lengths, "an episode under way was counted as ended by the reset"


@pytest.mark.parametrize("returned", [[1, 2.5], (1, 2.5), np.array([1, 2.5]), torch.tensor([1, 2.5])])
def test_numbers_are_lists_arrays_and_tensors(returned):
    assert numbers("m:f", returned, 2).tolist() == [1.0, 2.5]
    assert numbers("m:f", returned, 2).dtype == torch.float64


@pytest.mark.parametrize("returned", [None, "abc", 3.0, {"a": 1}, [[1.0], [2.0]], ["x"], object()])
def test_what_is_no_row_of_numbers_is_refused_in_one_line(returned):
    with pytest.raises(InvalidArgument, match=r"^m:f returned \w+: expected one number for each episode$"):
        numbers("m:f", returned, 1)


def test_too_few_numbers_and_numbers_that_are_not_finite_are_refused():
    with pytest.raises(DataLoss, match="returned 2 numbers for 3 episodes"):
        numbers("m:f", [1.0, 2.0], 3)
    with pytest.raises(DataLoss, match="returned 0 numbers for 1 episodes"):
        numbers("m:f", [], 1)
    with pytest.raises(DataLoss, match="not finite"):
        numbers("m:f", [1.0, float("nan")], 2)


@pytest.mark.parametrize(
    ("path", "said"),
    [("nowhere:f", "module 'nowhere' cannot be imported"), (f"{__name__}:nothing", "has no function 'nothing'")],
)
def test_a_path_that_leads_nowhere_is_refused(path, said):
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        FunctionPlay(path)(make("cartpole", 1), Still(), 1, 0)


def test_the_example_scores_the_mean_of_the_worst_quarter(monkeypatch):
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    returns = torch.tensor([5.0, 1.0, 9.0, 3.0, 7.0, 8.0, 6.0, 4.0], dtype=torch.float64)
    monkeypatch.setattr(example, "play", lambda *_: Episodes(returns, torch.ones(8)))
    # 0.25-quantile of 1, 3, 4, ..., 9: 3.75. Below it, by 2.75 and 0.75; (2.75 + 0.75) / 0.25 / 8 = 1.75.
    values = example.evaluate(make("cartpole", 2), Still(), 8, 0)
    evaluation = score(Episodes(values, torch.ones(8)))
    assert evaluation.mean_return == pytest.approx(3.75 - 1.75)
    assert evaluation.mean_return == pytest.approx((1.0 + 3.0) / 2)
    assert evaluation.episodes == 8
