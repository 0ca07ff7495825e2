from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from simulators import make
from simulators.stocks.backtest import equal_weight, performance
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import Market, load_market
from simulators.stocks.options import StockOptions

WriteFrame = Callable[[pd.DataFrame], str]


def market(close: Sequence[Sequence[float]], turbulent: Sequence[bool] | None = None) -> Market:
    """Makes a market of given closes whose features encode the day."""
    days, stocks = len(close), len(close[0])
    features = torch.arange(days).float().unsqueeze(1).expand(days, 9 * stocks).contiguous()
    dates = tuple(str(date) for date in np.datetime64("2020-01-01") + np.arange(days))
    flags = None if turbulent is None else torch.tensor(turbulent)
    return Market(dates, tuple("ABCDEFG"[:stocks]), torch.tensor(close, dtype=torch.float64), features, flags)


def random_market(days: int = 60, stocks: int = 4) -> Market:
    generator = torch.Generator().manual_seed(9)
    returns = 0.03 * torch.randn(days, stocks, generator=generator, dtype=torch.float64)
    return market((50 * returns.cumsum(0).exp()).tolist())


def random_actions(count: int, stocks: int, steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [2 * torch.rand(count, stocks, generator=generator) - 1 for _ in range(steps)]


def test_a_trade_of_three_days_computed_by_hand() -> None:
    options = StockOptions(initial_cash=1000.0, cost=0.01, maximum_shares=10, reward_scale=1.0)
    simulator = StockSimulator(market([[10, 20], [11, 19], [12, 21]]), options, 1)
    observation = simulator.reset(0)
    assert observation[0].tolist() == [0, 1, 0, 0] + [0] * 18
    # Buy 10 of A at 10 (101 with the fee); there is no B to sell. At the next close A is at 11.
    step = simulator.step(torch.tensor([[1.0, -1.0]]))
    assert simulator.cash.item() == pytest.approx(899)
    assert simulator.account_value.item() == pytest.approx(1009)
    assert step.reward.item() == pytest.approx(9)
    expected = [np.log(1.009), 899 / 1009, 110 / 1009, 0] + [1] * 18
    assert step.observation[0].tolist() == pytest.approx(expected, rel=1e-6)
    # Sell 5 of A at 11 (54.45 after the fee), buy 2 of B at 19 (38.38). At the last close A is at 12, B at 21.
    step = simulator.step(torch.tensor([[-0.55, 0.25]]))
    assert step.reward.item() == pytest.approx(1017.07 - 1009)
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False], [True])
    expected = [np.log(1.01707), 915.07 / 1017.07, 60 / 1017.07, 42 / 1017.07] + [2] * 18
    assert step.final_observation[0].tolist() == pytest.approx(expected, rel=1e-6)
    # The next episode has started: the first day, only cash.
    assert step.observation[0].tolist() == [0, 1, 0, 0] + [0] * 18


class OneAccount:
    """One lane in plain Python floats: FinRL's step, with the rules of simulators.stocks.trading."""

    def __init__(self, close: list[list[float]], day: int, options: StockOptions) -> None:
        self.close, self.day, self.options = close, day, options
        self.cash, self.shares = options.initial_cash, [0.0] * len(close[0])

    def value(self) -> float:
        return self.cash + sum(held * price for held, price in zip(self.shares, self.close[self.day], strict=True))

    def step(self, action: list[float]) -> float:
        before, prices, cost = self.value(), self.close[self.day], self.options.cost
        orders = [int(np.float32(fraction) * np.float32(self.options.maximum_shares)) for fraction in action]
        for stock, order in enumerate(orders):
            if order < 0:
                sold = min(-order, self.shares[stock])
                self.shares[stock] -= sold
                self.cash += sold * prices[stock] * (1 - cost)
        for stock in sorted(range(len(orders)), key=lambda stock: -orders[stock]):
            bought = min(max(orders[stock], 0), self.cash // (prices[stock] * (1 + cost)))
            self.shares[stock] += bought
            self.cash -= bought * prices[stock] * (1 + cost)
        self.day += 1
        return self.value() - before


def test_all_lanes_at_once_are_the_same_as_each_lane_alone_in_plain_python() -> None:
    count, traded, options = 64, random_market(), StockOptions(episode_days=40, initial_cash=2e5, maximum_shares=700)
    simulator = StockSimulator(traded, options, count)
    simulator.reset(6)
    accounts = [OneAccount(traded.close.tolist(), day, options) for day in simulator.day.tolist()]
    assert len({account.day for account in accounts}) > 10
    # The last step of an episode already shows the next account, so it is left out.
    for action in random_actions(count, 4, 38):
        step = simulator.step(action)
        gains = [account.step(lane) for account, lane in zip(accounts, action.tolist(), strict=True)]
        assert simulator.shares.tolist() == [account.shares for account in accounts]
        assert simulator.day.tolist() == [account.day for account in accounts]
        assert simulator.cash.tolist() == pytest.approx([account.cash for account in accounts], abs=1e-6)
        assert simulator.account_value.tolist() == pytest.approx([account.value() for account in accounts], abs=1e-6)
        assert step.reward.tolist() == pytest.approx([1e-4 * gain for gain in gains], rel=1e-5, abs=1e-9)
    assert min(account.cash for account in accounts) < 100  # cash was short, so the order of purchases mattered


def test_the_reward_is_exactly_the_scaled_change_of_the_account_value() -> None:
    options = StockOptions(maximum_shares=5000, reward_scale=2e-3)
    simulator = StockSimulator(random_market(), options, 16)
    for action in random_actions(16, 4, 58):
        before = simulator.account_value.clone()
        reward = simulator.step(action).reward
        assert torch.equal(reward, ((simulator.account_value - before) * 2e-3).float())


def test_the_rewards_of_an_episode_add_up_to_what_the_account_gained() -> None:
    simulator = StockSimulator(random_market(), StockOptions(maximum_shares=5000), 1)
    gained = sum(simulator.step(action).reward.item() for action in random_actions(1, 4, 59))
    trace = simulator.report().traces["account_value"]
    assert gained == pytest.approx(1e-4 * (trace[-1] - trace[0]), rel=1e-5)


def test_a_cent_is_not_lost_in_an_account_of_a_million() -> None:
    simulator = StockSimulator(market([[1.0], [1.01], [1.02]]), StockOptions(cost=0.0, maximum_shares=1), 1)
    simulator.step(torch.ones(1, 1))
    assert simulator.account_value.item() - 1e6 == pytest.approx(0.01, rel=1e-6)


def test_actions_are_truncated_to_whole_shares_and_limited() -> None:
    simulator = StockSimulator(market([[1.0] * 3] * 5), StockOptions(maximum_shares=10), 1)
    simulator.step(torch.tensor([[0.59, 3.0, 0.09]]))
    assert simulator.shares.tolist() == [[5, 10, 0]]
    simulator.step(torch.tensor([[-0.59, -0.19, 0.0]]))
    assert simulator.shares.tolist() == [[0, 9, 0]]


def test_in_turbulence_all_shares_are_sold_and_none_are_bought() -> None:
    turbulent = [False, False, True, True, False, False]
    options = StockOptions(cost=0.0, maximum_shares=10, turbulence_threshold=1.0)
    simulator = StockSimulator(market([[10.0, 20.0]] * 6, turbulent), options, 2)
    actions = torch.tensor([[1.0, 0.5], [0.0, -1.0]])
    held = []
    for _ in range(5):
        held.append(simulator.shares[0].tolist())
        simulator.step(actions)
    assert held == [[0, 0], [10, 5], [20, 10], [0, 0], [0, 0]]


def test_turbulence_acts_at_the_close_of_its_own_day_and_not_before() -> None:
    turbulent = [False, True, False, False]
    options = StockOptions(cost=0.0, maximum_shares=10, turbulence_threshold=1.0)
    simulator = StockSimulator(market([[10.0], [5.0], [5.0], [5.0]], turbulent), options, 1)
    simulator.step(torch.ones(1, 1))
    simulator.step(torch.ones(1, 1))
    # Bought at 10, sold at 5 on the day the market fell: the index was not known before.
    assert simulator.cash.item() == pytest.approx(1e6 - 50)


def test_an_episode_of_n_days_has_n_minus_one_steps_and_starts_on_any_day_that_leaves_room() -> None:
    simulator = StockSimulator(random_market(30), StockOptions(episode_days=10), 500)
    simulator.reset(1)
    assert set(simulator.day.tolist()) == set(range(21))
    for _ in range(2):
        first = simulator.day.clone()
        for step_number in range(1, 10):
            truncated = simulator.step(torch.zeros(500, 4)).truncated
            assert bool(truncated.all()) == bool(truncated.any()) == (step_number == 9)
        assert not torch.equal(first, simulator.day)


def test_final_observations_show_the_day_after_the_last_trade() -> None:
    simulator = StockSimulator(random_market(30), StockOptions(episode_days=10), 50)
    first = simulator.reset(1)[:, -1].clone()
    for _ in range(9):
        step = simulator.step(torch.zeros(50, 4))
    assert torch.equal(step.final_observation[:, -1], first + 9)
    assert torch.equal(step.observation[:, -1], simulator.day.float())


def test_observations_and_rewards_do_not_depend_on_later_days(
    random_prices: pd.DataFrame, write_prices: WriteFrame
) -> None:
    changed = random_prices.copy()
    columns, later = ["high", "low", "close", "adj_close"], changed["date"] >= "2015-09-01"
    changed.loc[later, columns] *= np.random.default_rng(0).uniform(0.5, 2, (later.sum(), 1))
    options = StockOptions(train_end="2016-01-01", validation_end="2016-02-01")
    one, other = (load_market(replace(options, path=write_prices(frame))) for frame in (random_prices, changed))
    known_days = sum(date < "2015-09-01" for date in one.dates)
    simulators = [StockSimulator(each, StockOptions(maximum_shares=5000), 3) for each in (one, other)]
    for number, action in enumerate(random_actions(3, 3, known_days + 5), start=1):
        first, second = (simulator.step(action) for simulator in simulators)
        same = torch.equal(first.observation, second.observation) and torch.equal(first.reward, second.reward)
        assert same == (number < known_days)


def test_the_state_of_finrl_can_be_recovered_from_an_observation() -> None:
    simulator = make("stocks", 8, {"maximum_shares": 2000, "episode_days": 100})
    simulator.reset(3)
    assert isinstance(simulator, StockSimulator)
    for action in random_actions(8, 4, 30):
        observation = simulator.step(action).observation.double()
    reference = load_market(StockOptions()).close[0]
    value = 1e6 * observation[:, 0].exp()
    close = reference * observation[:, 6:10].exp()
    torch.testing.assert_close(value * observation[:, 1], simulator.cash, rtol=1e-5, atol=1)
    torch.testing.assert_close(value.unsqueeze(1) * observation[:, 2:6] / close, simulator.shares, rtol=1e-5, atol=1e-2)


def test_nothing_is_reported_before_an_episode_of_the_whole_split_has_ended() -> None:
    simulator = StockSimulator(random_market(20), StockOptions(), 2)
    for _ in range(18):
        simulator.step(torch.zeros(2, 4))
        assert simulator.report().metrics == {}
    simulator.step(torch.zeros(2, 4))
    assert simulator.report().metrics != {}
    simulator.reset(0)
    assert simulator.report().metrics == {}
    windows = StockSimulator(random_market(20), StockOptions(episode_days=5), 2)
    for _ in range(20):
        windows.step(torch.zeros(2, 4))
    assert windows.report().metrics == {}


def test_the_report_is_of_lane_zero_in_its_last_finished_episode_with_the_baseline() -> None:
    traded = random_market(20)
    simulator = StockSimulator(traded, StockOptions(maximum_shares=5000), 2)
    actions = random_actions(2, 4, 19)
    values = [1e6]
    for action in actions:
        simulator.step(action)
        values.append(simulator.account_value[0].item())
    step_of_second_episode = simulator.step(-actions[0])
    assert not step_of_second_episode.truncated.any()
    report = simulator.report()
    trace = np.array(report.traces["account_value"])
    # `values` lacks the last value: that step already shows the next account.
    assert trace[:-1].tolist() == values[:-1]
    baseline = equal_weight(traded.close.numpy(), 1e6, 0.001)
    assert report.traces["equal_weight_value"] == baseline.tolist()
    assert report.labels == {"date": list(traded.dates)}
    prefixed = {f"equal_weight_{name}": value for name, value in performance(baseline).items()}
    assert report.metrics == performance(trace) | prefixed


def test_the_number_of_lanes_changes_no_lane_of_a_whole_split() -> None:
    traded, options = random_market(), StockOptions(maximum_shares=5000)
    one, many = StockSimulator(traded, options, 1), StockSimulator(traded, options, 33)
    for action in random_actions(33, 4, 59):
        assert torch.equal(one.step(action[:1]).observation, many.step(action).observation[:1])
