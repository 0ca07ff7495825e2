"""Measures of single episodes, compared with those of the whole series of account values."""

import math

import numpy as np
import pytest
import torch

from simulators.stocks.backtest import performance
from simulators.stocks.environment import StockSimulator
from simulators.stocks.episodes import LEAST_DRAWDOWN, EpisodeMeasures
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions

DAYS, BARS, STOCKS = 40, 4, 3
NAMES = {*performance(np.ones(3)), "return_minus_drawdown"}


def make_market(bars: int = 1, folds: int = 0) -> Market:
    generator = torch.Generator().manual_seed(3)
    rows = DAYS * bars
    close = (0.03 * torch.randn(rows, STOCKS, generator=generator, dtype=torch.float64)).cumsum(0).exp() * 40
    dates = tuple(f"d{row // bars:02d}" for row in range(rows))
    length = rows // folds if folds else rows
    blocks = tuple(range(start, start + length) for start in range(0, length * folds, length))
    numbers = tuple(range(1, folds + 1))
    return Market(
        dates, ("A", "B", "C"), close, torch.zeros(rows, 9 * STOCKS), bars_a_day=bars, blocks=blocks, folds=numbers
    )


def played(simulator: StockSimulator, steps: int, seed: int = 8) -> list[list[tuple[int, float]]]:
    """Steps by random actions; returns for each lane the rows and account values of its first episode."""
    generator = torch.Generator().manual_seed(seed)
    first = [[(int(simulator.day[lane]), 1e6)] for lane in range(simulator.count)]
    running = [True] * simulator.count
    for _ in range(steps):
        step = simulator.step(2 * torch.rand(simulator.count, STOCKS, generator=generator) - 1)
        for lane in range(simulator.count):
            if running[lane]:
                row, value = first[lane][-1]
                gained = step.reward[lane].item() / simulator._options.reward_scale
                first[lane].append((row + 1, value + gained))
                running[lane] = not bool(step.truncated[lane])
    return first


@pytest.mark.parametrize(("bars", "episode_days"), [(1, 0), (1, 12), (BARS, 6)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_measures_of_an_episode_are_those_of_its_values_at_each_close(
    bars: int, episode_days: int, masked: bool
) -> None:
    market = make_market(bars)
    options = StockOptions(split="validation", episode_days=episode_days, maximum_shares=3000, reward_scale=1.0)
    simulator = StockSimulator(market, options, 5)
    if masked:
        simulator._together = simulator._on_cpu = False
    # Longer than an episode: what follows the first one does not count.
    values = played(simulator, (episode_days or DAYS) * bars + 9)
    measured = simulator.report().episode_metrics
    assert measured.keys() == NAMES
    ends = set(market.day_ends.tolist())
    for lane, episode in enumerate(values):
        points = [
            value
            for place, (row, value) in enumerate(episode)
            if place in (0, len(episode) - 1) or row in ends
        ]  # fmt: skip
        expected = performance(np.array(points))
        expected["calmar_ratio"] = expected["annual_return"] / max(LEAST_DRAWDOWN, -expected["maximum_drawdown"])
        expected["return_minus_drawdown"] = expected["cumulative_return"] + expected["maximum_drawdown"]
        found = {name: numbers[lane] for name, numbers in measured.items()}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_three_days_computed_by_hand() -> None:
    measures = EpisodeMeasures(2, None, (), torch.device("cpu"))
    measures.restart(torch.tensor([100.0, 100.0]).double(), torch.zeros(2, dtype=torch.int64))
    never, row = torch.tensor([False, False]), torch.zeros(2, dtype=torch.int64)
    measures.add(torch.tensor([110.0, 100.0]).double(), row, never)
    assert all(math.isnan(number) for numbers in measures.report().values() for number in numbers)
    measures.add(torch.tensor([99.0, 100.0]).double(), row, torch.tensor([True, False]))
    # The next episode of the first lane is not measured.
    measures.add(torch.tensor([500.0, 100.0]).double(), row, torch.tensor([True, True]))
    report = measures.report()
    assert report["cumulative_return"] == pytest.approx([-0.01, 0.0])
    assert report["maximum_drawdown"] == pytest.approx([-0.1, 0.0])
    assert report["return_minus_drawdown"] == pytest.approx([-0.11, 0.0])
    assert report["annual_return"] == pytest.approx([0.99**84 - 1, 0.0])
    assert report["calmar_ratio"] == pytest.approx([(0.99**84 - 1) / 0.1, 0.0])
    # The two daily returns are 0.1 and -0.1: their mean is 0, their deviation 0.1 sqrt(2).
    assert report["sharpe_ratio"] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert report["annual_volatility"] == pytest.approx([0.1 * math.sqrt(2 * 252), 0.0])
    assert "fold" not in report


def test_the_fold_of_each_episode_is_reported() -> None:
    options = StockOptions(split="validation", episode_days=5, folds=4)
    simulator = StockSimulator(make_market(folds=4), options, 6)
    values = played(simulator, 5)
    assert simulator.report().episode_metrics["fold"] == [1 + episode[0][0] // 10 for episode in values]
    assert set(simulator.report().episode_metrics["fold"]) == {1, 2, 3, 4}


def test_a_reset_begins_again() -> None:
    simulator = StockSimulator(make_market(), StockOptions(split="validation", episode_days=8), 3)
    simulator.reset(5)
    played(simulator, 10)
    first = simulator.report().episode_metrics
    played(simulator, 10, seed=2)
    simulator.reset(5)
    played(simulator, 10)
    assert simulator.report().episode_metrics == first


def test_training_does_not_pay_for_measures() -> None:
    simulator = StockSimulator(make_market(), StockOptions(episode_days=8), 3)
    played(simulator, 10)
    assert simulator.report().episode_metrics == {}
