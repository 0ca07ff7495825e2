"""FinRL's trading task as one tensor program: N accounts trading the same market, each on its own day.

The task (Liu et al. 2020, "FinRL", arXiv 2011.09607; its StockTradingEnv): an account sees the close of a day, trades
at that close, and is rewarded with the change of its value by the next close, fees included.
"""

import torch
from torch import Tensor

from simulators.base import Report, Space, Step
from simulators.stocks.backtest import equal_weight, performance
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions
from simulators.stocks.trading import trade


class StockSimulator:
    """N accounts behind the Simulator interface; money is counted in float64, since float32 loses cents at 1e6.

    An observation [N, 2 + 10 n] float32 holds FinRL's state (cash, closes, shares, indicators), scaled so that a
    network can use it and so that FinRL's numbers can be computed back from it:

        0           log(account value / initial cash)
        1           cash / account value
        2 .. 1+n    value of the shares of each stock / account value
        2+n ..      the market's features of the day (see simulators.stocks.indicators.market_features)

    An action [N, n] in [-1, 1] is the fraction of `maximum_shares` to buy (or, negative, to sell), cut to whole
    shares. An episode ends `truncated`, never `terminated`: on its last day the account goes on existing and only
    ceases to be observed, so its future is worth bootstrapping. All episodes have the same length, so all lanes end
    in the same step, and which step that is needs no question to the device.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
        cash: [N] float64.
        shares: [N, n] float64, whole numbers.
        account_value: [N] float64: cash and the value of the shares at the close of `day`.
        day: [N] int64: row of the market that each lane has reached.
    """

    cash: Tensor
    shares: Tensor
    account_value: Tensor
    day: Tensor

    def __init__(self, market: Market, options: StockOptions, count: int) -> None:
        """Begins episodes with seed 0; `reset` chooses another.

        Args:
            market: The days to trade; the simulator lives on the device of its tensors.
            options: Money, fees and episodes; its split and data are those `market` was loaded with.
            count: Number of lanes.
        """
        days, stocks = market.close.shape
        self.observation_space = Space("continuous", (2 + 10 * stocks,), torch.float32)
        self.action_space = Space("continuous", (stocks,), torch.float32, (-1.0,) * stocks, (1.0,) * stocks)
        self.count = count
        self._market = market
        self._options = options
        self._whole_split = options.episode_days == 0
        self._episode_days = options.episode_days or days
        self._generator = torch.Generator(market.close.device)
        self._history = torch.zeros(days, dtype=torch.float64, device=market.close.device)
        self._finished_history: Tensor | None = None
        self._allocate()
        self.reset(0)

    def _allocate(self) -> None:
        device = self._market.close.device
        shape = (self.count, *self.observation_space.shape)
        self._observation = torch.zeros(shape, device=device)
        self._reward = torch.zeros(self.count, device=device)
        self._final_observation = torch.zeros(shape, device=device)
        never = torch.zeros(self.count, dtype=torch.bool, device=device)
        # Only these two kinds of step exist, and their tensors are live: make each once.
        self._inner_step = Step(self._observation, self._reward, never, never, self._final_observation)
        self._last_step = Step(self._observation, self._reward, never, ~never, self._final_observation)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed draws the days on which episodes begin."""
        self._generator.manual_seed(seed)
        self._finished_history = None
        self._begin_episodes()
        return self._observation

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        self.cash, self.shares = trade(self._orders(action), self._close, self.cash, self.shares, self._options.cost)
        previous_value = self.account_value
        self._see_close(self.day + 1)
        torch.mul(self.account_value - previous_value, self._options.reward_scale, out=self._reward)
        if self._days_seen < self._episode_days:
            return self._inner_step
        self._final_observation.copy_(self._observation)
        if self._whole_split:
            self._finished_history = self._history.clone()
        self._begin_episodes()
        return self._last_step

    def _orders(self, action: Tensor) -> Tensor:
        """Whole shares to trade, [N, n] float64; in turbulence, everything held is to be sold."""
        orders = (action.clamp(-1, 1) * self._options.maximum_shares).trunc_().double()
        if self._market.turbulent is None:
            return orders
        return torch.where(self._market.turbulent[self.day].unsqueeze(1), -self.shares, orders)

    def _begin_episodes(self) -> None:
        device = self._market.close.device
        starts = self._market.close.shape[0] - self._episode_days + 1
        self.cash = torch.full((self.count,), self._options.initial_cash, dtype=torch.float64, device=device)
        self.shares = torch.zeros(self.count, *self.action_space.shape, dtype=torch.float64, device=device)
        self._days_seen = 0
        self._see_close(torch.randint(starts, (self.count,), generator=self._generator, device=device))

    def _see_close(self, day: Tensor) -> None:
        """Moves every lane to the close of a day, values the accounts at it and observes it."""
        self.day = day
        self._days_seen += 1
        self._close = self._market.close.index_select(0, day)
        holdings = self.shares * self._close
        self.account_value = self.cash + holdings.sum(1)
        if self._whole_split:
            self._history[self._days_seen - 1] = self.account_value[0]
        observation, stocks = self._observation, holdings.shape[1]
        torch.log(self.account_value / self._options.initial_cash, out=observation[:, 0])
        torch.div(self.cash, self.account_value, out=observation[:, 1])
        torch.div(holdings, self.account_value.unsqueeze(1), out=observation[:, 2 : 2 + stocks])
        torch.index_select(self._market.features, 0, day, out=observation[:, 2 + stocks :])

    def report(self) -> Report:
        """How lane 0 did in its last finished episode beside buy and hold of the equal-weight pool.

        Only episodes of the whole split are reported; the report is empty before the first has ended.

        Returns:
            Metrics of `simulators.stocks.backtest.performance`, plain for the account and prefixed `equal_weight_`
            for the baseline; traces `account_value` and `equal_weight_value`; labels `date`.
        """
        if self._finished_history is None:
            return Report()
        account_value = self._finished_history.cpu().numpy()
        baseline = equal_weight(self._market.close.cpu().numpy(), self._options.initial_cash, self._options.cost)
        baseline_metrics = {f"equal_weight_{name}": value for name, value in performance(baseline).items()}
        return Report(
            metrics=performance(account_value) | baseline_metrics,
            traces={"account_value": account_value.tolist(), "equal_weight_value": baseline.tolist()},
            labels={"date": list(self._market.dates)},
        )

    def close(self) -> None:
        """Nothing to free: tensors go with the simulator."""
