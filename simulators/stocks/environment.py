"""Simulates FinRL's trading task as one tensor program: N accounts trade the same market, each on its own day.

The task (Liu et al. 2020, "FinRL", arXiv 2011.09607; its StockTradingEnv): an account observes the close of a day,
trades at that close, and its reward is the change of its value up to the next close, after fees. A day may also be a
shorter bar.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from simulators.base import Report, Space, Step
from simulators.stocks.episodes import EpisodeMeasures, EpisodeWindows
from simulators.stocks.layouts import LAYOUTS, Accounts
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions
from simulators.stocks.report import make_fold_report, make_report
from simulators.stocks.trading import trade_in_lots


class StockSimulator:
    """N accounts behind the Simulator interface. Money is in float64, because float32 loses cents at 1e6.

    Observations are float32, in one of the layouts of `simulators.stocks.layouts`. An action [N, n] in [-1, 1] is the
    fraction of `maximum_shares` to buy (or, if negative, to sell), truncated to whole shares. There is no short
    selling, and cash earns no interest. In turbulence everything is sold. In a bar without trades orders do not fill,
    and a stock outside the pool cannot be bought.

    An episode ends `truncated`, never `terminated`: the account still has a future after its last day, so that state is
    bootstrapped. Every lane has its own day. On the CPU, unless the lanes are staggered, all episodes end in the same
    step, which the host counts. On an accelerator the host would have to wait to learn which lanes ended, so every step
    resets the ended lanes by a mask. A step is then the same sequence of kernels on the same memory and can be captured
    (simulators.cuda_graph).

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
        generator: Draws the days on which episodes start.
        cash: [N] float64.
        shares: [N, n] float64, whole numbers.
        account_value: [N] float64: cash and the value of the shares at the close of `day`.
        day: [N] int64: row of the market in which each lane is.
    """

    def __init__(self, market: Market, options: StockOptions, count: int) -> None:
        """Starts episodes with seed 0; `reset` chooses another seed.

        Args:
            market: The rows to trade; the simulator uses the device of its tensors.
            options: Money, fees and episodes; split, data and layout must be those with which `market` was loaded.
            count: Number of lanes.
        """
        rows, stocks = market.close.shape
        self._layout = LAYOUTS[options.layout]
        self.observation_space = Space("continuous", (self._layout.size(stocks),), torch.float32)
        self.action_space = Space("continuous", (stocks,), torch.float32, (-1.0,) * stocks, (1.0,) * stocks)
        self.count, self._market, self._options = count, market, options
        # Copying a block is fast only if its rows are contiguous.
        parts = torch.split(market.features, list(self._layout.blocks(stocks)), dim=1)
        self._features = [part.contiguous() for part in parts]
        blocks = market.blocks or (range(rows),)
        self._episode_rows = options.episode_days * market.bars_a_day
        self.generator = torch.Generator(market.close.device)
        self._windows = EpisodeWindows(blocks, self._episode_rows, count, self.generator, folded=bool(market.folds))
        self._on_cpu = market.close.device.type == "cpu"
        self._together = self._on_cpu and not options.staggered and self._windows.equally_long
        whole = not self._episode_rows and (len(blocks) == 1 or bool(market.folds))
        self._recorded = min(count, len(blocks)) if whole else 0
        self._allocate(rows, stocks)
        self.reset(0)

    def _allocate(self, rows: int, stocks: int) -> None:
        count, device = self.count, self._market.close.device

        def money(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.cash, self.account_value = money(count), money(count)
        self.shares, self._close = money(count, stocks), money(count, stocks)
        self.day = torch.zeros(count, dtype=torch.int64, device=device)
        self._last_day = torch.zeros(count, dtype=torch.int64, device=device)
        self._idle_bars = torch.zeros(count, stocks, device=device)
        shape = (count, *self.observation_space.shape)
        self._live = Step(
            observation=torch.zeros(shape, device=device),
            reward=torch.zeros(count, device=device),
            terminated=torch.zeros(count, dtype=torch.bool, device=device),
            truncated=torch.zeros(count, dtype=torch.bool, device=device),
            final_observation=torch.zeros(shape, device=device),
        )
        # Account value, cash and shares in every row: one half for the current episode, one for the last. The last row
        # is for lanes whose episode is not recorded.
        self._record = money(2 * rows + 1 if self._recorded else 0, 2 + stocks)
        self._writes = torch.zeros(self._recorded, dtype=torch.bool, device=device)
        self._before = torch.ones(self._recorded, self._recorded, dtype=torch.bool, device=device).tril(-1)
        self._finished = torch.zeros(len(self._market.blocks) or 1, dtype=torch.int64, device=device)
        # Training asks for no measures of single episodes, so its steps do not compute them.
        self._measures: EpisodeMeasures | None = None
        if self._options.split != "train":
            at_close = None if self._market.bars_a_day == 1 else torch.zeros(rows, dtype=torch.bool)
            if at_close is not None:
                at_close[self._market.day_ends] = True
                at_close = at_close.to(device)
            self._measures = EpisodeMeasures(count, at_close, self._market.folds, device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed determines the days on which episodes start."""
        self.generator.manual_seed(seed)
        self._finished.zero_()
        self._windows.restart()
        self._steps = 0
        self._live.truncated.fill_(True)
        self._begin_episodes()
        self._episode_steps = int(self._last_day[0] - self.day[0]) if self._together else 0
        if self._options.staggered:
            steps = self._last_day - self.day
            self.day += torch.arange(self.count, device=self.day.device) * steps // self.count
        self._see_close()
        if self._measures:
            self._measures.restart(self.account_value, self._windows.block)
        return self._live.observation

    @property
    def capturable(self) -> "StockSimulator":
        """See simulators.cuda_graph.Capturable."""
        return self

    @property
    def graph_generators(self) -> Sequence[torch.Generator]:
        """See simulators.cuda_graph.Capturable."""
        return (self.generator,)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        self._trade(action)
        self.day += 1
        value_before = self.account_value.clone()
        self._see_close()
        torch.mul(self.account_value - value_before, self._options.reward_scale, out=self._live.reward)
        any_ended = self._mark_ended()
        if self._measures:
            self._measures.add(self.account_value, self.day, self._live.truncated)
        if any_ended:
            self._live.final_observation.copy_(self._live.observation)
            self._count_finished()
            self._begin_episodes()
            self._see_close()
        return self._live

    def _trade(self, action: Tensor) -> None:
        options = self._options
        orders = self._orders(action)
        cash, shares = trade_in_lots(orders, self._close, self.cash, self.shares, options.cost, options.lot_size)
        if self._layout.shows_idle_bars:
            self._idle_bars += 1
            self._idle_bars.masked_fill_(shares != self.shares, 0)
        self.cash.copy_(cash)
        self.shares.copy_(shares)

    def _orders(self, action: Tensor) -> Tensor:
        """Returns whole shares to trade, [N, n] float64; in turbulence, all shares held are sold."""
        market = self._market
        orders = (action.clamp(-1, 1) * self._options.maximum_shares).trunc_().double()
        if self._options.ignored_shares:
            orders.masked_fill_(orders.abs() <= self._options.ignored_shares, 0)
        if market.turbulent is not None:
            orders = torch.where(market.turbulent[self.day].unsqueeze(1), -self.shares, orders)
        if market.member is not None:
            orders = torch.where(market.member.index_select(0, self.day), orders, orders.clamp(max=0))
        if market.traded is not None:
            orders *= market.traded.index_select(0, self.day)
        return orders

    def _mark_ended(self) -> bool:
        """Marks the lanes whose episode has ended; returns False if it is known that there are none."""
        if self._together:
            self._steps = (self._steps + 1) % self._episode_steps
            self._live.truncated.fill_(self._steps == 0)
            return self._steps == 0
        torch.eq(self.day, self._last_day, out=self._live.truncated)
        return not self._on_cpu or bool(self._live.truncated.any())

    def _count_finished(self) -> None:
        ended = self._live.truncated
        recorded = self._recorded
        if recorded:
            self._finished.index_add_(0, self._windows.block[:recorded], (ended[:recorded] & self._writes).long())
        self._windows.episodes += ended

    def _begin_episodes(self) -> None:
        """Resets the accounts of the lanes that are marked as ended."""
        lanes = self._live.truncated
        self._windows.draw(lanes, self.day, self._last_day)
        if self._recorded:
            self._choose_writers(lanes[: self._recorded])
        self.cash.masked_fill_(lanes, self._options.initial_cash)
        self.shares.masked_fill_(lanes.unsqueeze(1), 0)
        self._idle_bars.masked_fill_(lanes.unsqueeze(1), 0)

    def _choose_writers(self, begun: Tensor) -> None:
        """Chooses which of the lanes whose episode has begun record it: one at a time in each block.

        Folds may differ in length, so a lane may begin in a block in which another one still plays.
        """
        block = self._windows.block[: self._recorded]
        together = block.unsqueeze(1) == block
        taken = together & ((self._writes & ~begun) | (begun & self._before))
        self._writes.copy_(torch.where(begun, ~taken.any(1), self._writes))

    def _see_close(self) -> None:
        """Computes every account's value at the close of its day, and its observation."""
        torch.index_select(self._market.close, 0, self.day, out=self._close)
        holdings = self.shares * self._close
        torch.add(self.cash, holdings.sum(1), out=self.account_value)
        if self._recorded:
            self._take_record()
        accounts = Accounts(
            self.cash, self.shares, holdings, self.account_value, self._idle_bars, self._options.initial_cash
        )
        self._layout.observe(accounts, self._features, self.day, self._live.observation)

    def _take_record(self) -> None:
        lanes = self._recorded
        rows = torch.cat([self.account_value[:lanes, None], self.cash[:lanes, None], self.shares[:lanes]], dim=1)
        half = (self._finished[self._windows.block[:lanes]] % 2) * self._market.close.shape[0]
        unrecorded = len(self._record) - 1
        self._record.index_copy_(0, torch.where(self._writes, half + self.day[:lanes], unrecorded), rows)

    def report(self) -> Report:
        """Reports the last finished episode of the split, or of each fold, and measures of each lane's first episode.

        Measures and traces of an episode exist for whole splits or folds only, and once the first one has ended; see
        `simulators.stocks.report`. Measures of single episodes exist for all splits but train; see `EpisodeMeasures`.
        """
        return replace(
            self._report_of_split(), episode_metrics=self._measures.report() if self._measures is not None else {}
        )

    def _report_of_split(self) -> Report:
        finished = self._finished.tolist()
        if not self._recorded or not any(finished):
            return Report()
        rows = self._market.close.shape[0]
        halves = self._record[:-1].view(2, rows, -1).cpu().numpy()
        if not self._market.folds:
            return make_report(self._market, self._options, halves[(finished[0] - 1) % 2], self._whole_split_accounts)
        played = [
            (block, halves[(times - 1) % 2, block.start : block.stop])
            for block, times in zip(self._market.blocks, finished, strict=True)
            if times
        ]
        return make_fold_report(self._market, self._options, played)

    def _whole_split_accounts(self, count: int) -> "StockSimulator":
        return StockSimulator(self._market, replace(self._options, episode_days=0, staggered=False), count)

    def close(self) -> None:
        """Has no resources to free: the tensors are freed with the simulator."""
