"""Tests lanes that are on different days."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions

DAYS, STOCKS = 40, 3


@pytest.fixture(scope="module")
def market() -> Market:
    """Makes a market whose features encode the day."""
    generator = torch.Generator().manual_seed(3)
    close = (0.03 * torch.randn(DAYS, STOCKS, generator=generator, dtype=torch.float64)).cumsum(0).exp() * 40
    features = torch.arange(DAYS).float().unsqueeze(1).expand(DAYS, 9 * STOCKS).contiguous()
    return Market(tuple(f"d{day:02d}" for day in range(DAYS)), ("A", "B", "C"), close, features)


def actions(count: int, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(8)
    return [2 * torch.rand(count, STOCKS, generator=generator) - 1 for _ in range(steps)]


def by_masks(simulator: StockSimulator) -> StockSimulator:
    """Makes a simulator step as on an accelerator: without synchronizing, resetting lanes by a mask."""
    simulator._together = simulator._on_cpu = False
    return simulator


@pytest.mark.parametrize("episode_days", [0, 10])
def test_resetting_by_masks_equals_resetting_by_counting(market: Market, episode_days: int) -> None:
    options = StockOptions(episode_days=episode_days, maximum_shares=4000)
    counted, masked = (StockSimulator(market, options, 6) for _ in range(2))
    by_masks(masked)
    # The draws of later windows happen at other moments; an episode of the whole split draws nothing.
    for action in actions(6, 100 if episode_days == 0 else 9):
        one, other = counted.step(action), masked.step(action)
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.truncated, other.truncated)
        if one.truncated.any():
            assert torch.equal(one.final_observation, other.final_observation)
        if episode_days == 0:
            assert torch.equal(one.observation, other.observation)
    if episode_days == 0:
        assert counted.report() == masked.report()
    assert counted.report().metrics.keys() == masked.report().metrics.keys()


def test_staggered_lanes_end_one_after_the_other_and_then_have_whole_episodes(market: Market) -> None:
    simulator = StockSimulator(market, StockOptions(episode_days=11, staggered=True), 5)
    ended: list[list[int]] = [[] for _ in range(5)]
    for number, action in enumerate(actions(5, 40), start=1):
        for lane in simulator.step(action).truncated.nonzero().flatten().tolist():
            ended[lane].append(number)
    # An episode has ten steps, of which lane i skips 10 i / 5.
    assert ended == [[10 - skipped + 10 * episode for episode in range(4)][: len(ended[lane])] for lane, skipped in
                     enumerate((0, 2, 4, 6, 8))]  # fmt: skip
    assert [len(each) for each in ended] == [4, 4, 4, 4, 4]


def test_staggered_lanes_start_with_cash_alone_on_any_day(market: Market) -> None:
    simulator = StockSimulator(market, StockOptions(staggered=True), 4)
    first = simulator.reset(2)
    assert simulator.day.tolist() == [0, 9, 19, 29]
    assert first[:, -1].tolist() == [0, 9, 19, 29]
    assert first[:, :2].tolist() == [[0, 1]] * 4


def test_a_lane_does_not_depend_on_when_the_others_end(market: Market) -> None:
    options = StockOptions(episode_days=0, maximum_shares=3000, staggered=True)
    alone, among = StockSimulator(market, options, 1), StockSimulator(market, options, 7)
    for action in actions(7, 3 * (DAYS - 1)):
        one, many = alone.step(action[:1]), among.step(action)
        assert torch.equal(one.observation, many.observation[:1])
        assert torch.equal(one.reward, many.reward[:1])
        assert torch.equal(one.truncated, many.truncated[:1])
    assert alone.report() == among.report()


def test_a_reset_removes_every_trace_of_earlier_steps(market: Market) -> None:
    simulator = StockSimulator(market, StockOptions(episode_days=7, staggered=True), 9)
    rolls = []
    for _ in range(2):
        seen = [simulator.reset(5).clone()]
        seen += [simulator.step(action).observation.clone() for action in actions(9, 17)]
        rolls.append(torch.stack(seen))
    assert torch.equal(*rolls)


def test_tensors_keep_their_addresses(market: Market) -> None:
    """A CUDA graph records addresses."""
    simulator = by_masks(StockSimulator(market, StockOptions(episode_days=5), 4))
    kept = [simulator.cash, simulator.shares, simulator.day, simulator.account_value, simulator.reset(0)]
    addresses = [tensor.data_ptr() for tensor in kept]
    for action in actions(4, 12):
        step = simulator.step(action)
    now = [simulator.cash, simulator.shares, simulator.day, simulator.account_value, step.observation]
    assert [tensor.data_ptr() for tensor in now] == addresses


FOLDS = (range(0, 12), range(12, 25), range(25, DAYS))


@pytest.mark.parametrize("episode_days", [0, 6])
def test_folds_of_different_lengths_are_traded_alike_by_masks(market: Market, episode_days: int) -> None:
    folded = replace(market, blocks=FOLDS, folds=(1, 2, 3))
    options = StockOptions(episode_days=episode_days, maximum_shares=4000)
    counted, masked = (StockSimulator(folded, options, 3) for _ in range(2))
    by_masks(masked)
    for action in actions(3, 60 if episode_days == 0 else 5):
        one, other = counted.step(action), masked.step(action)
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.truncated, other.truncated)
    assert counted.report() == masked.report()


def test_an_account_never_steps_from_one_fold_into_another(market: Market) -> None:
    folded = replace(market, blocks=FOLDS, folds=(1, 2, 3))
    for episode_days in (0, 5):
        simulator = StockSimulator(folded, StockOptions(episode_days=episode_days), 4)
        where = {day: number for number, block in enumerate(FOLDS) for day in block}
        before = simulator.day.tolist()
        for action in actions(4, 80):
            step = simulator.step(action)
            after = simulator.day.tolist()
            for lane in range(4):
                if not step.truncated[lane]:
                    assert after[lane] == before[lane] + 1
                    assert where[after[lane]] == where[before[lane]]
            before = after
