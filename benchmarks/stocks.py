"""Measures environment steps per second of stock trading: all accounts as one tensor program, and one in a numpy loop.

Both simulate the same task: FinRL's state, orders, fees and rewards, with random actions drawn in advance. The loop
goes from stock to stock as the published environment does, but without its tables. The two alternate; the value is the
median. Prints one JSON object per line.

    python benchmarks/stocks.py [--quick] [--device cuda:0]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from simulators import Simulator
from simulators.cuda_graph import CudaGraphSimulator
from simulators.stocks import with_defaults
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import Market, load_market
from simulators.stocks.options import StockOptions

HORIZON = 64
CASES = {
    "daily, 4 stocks": {"layout": "finrl", "episode_days": 126},
    "minute, 30 stocks": {
        "layout": "finrl",
        "path": "synthetic:minute?symbols=30&days=60",
        "episode_days": 10,
    },
}


class OneAccount:
    """FinRL's environment for one account, in numpy."""

    def __init__(self, market: Market, options: StockOptions) -> None:
        self.options, self.rows = options, options.episode_days * market.bars_a_day
        self.close = market.close.cpu().numpy()
        self.indicators = market.features.cpu().numpy()[:, self.close.shape[1] :]
        self.generator = np.random.default_rng(0)
        self.reset()

    def reset(self):
        self.day = int(self.generator.integers(len(self.close) - self.rows + 1))
        self.last = self.day + self.rows - 1
        self.cash, self.shares = self.options.initial_cash, np.zeros(self.close.shape[1])
        self.value = self.cash
        return self.observation()

    def observation(self):
        return np.concatenate(
            [[self.cash], self.close[self.day], self.shares, self.indicators[self.day]], dtype=np.float32
        )

    def step(self, action):
        close, cost = self.close[self.day], self.options.cost
        orders = (action * self.options.maximum_shares).astype(int)
        ascending = np.argsort(orders, kind="stable")
        for stock in ascending[: np.count_nonzero(orders < 0)]:
            sold = min(-orders[stock], self.shares[stock])
            self.shares[stock] -= sold
            self.cash += sold * close[stock] * (1 - cost)
        for stock in ascending[::-1][: np.count_nonzero(orders > 0)]:
            bought = min(orders[stock], self.cash // (close[stock] * (1 + cost)))
            self.shares[stock] += bought
            self.cash -= bought * close[stock] * (1 + cost)
        self.day += 1
        before, self.value = self.value, self.cash + float(self.shares @ self.close[self.day])
        ended = self.day == self.last
        return (self.reset() if ended else self.observation()), (self.value - before) * self.options.reward_scale, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=2048, help="number of accounts")
    parser.add_argument("--quick", action="store_true", help="three short repetitions")
    options = parser.parse_args()
    repetitions, seconds = (3, 0.3) if options.quick else (9, 1.0)
    default_threads = torch.get_num_threads()
    for name, given in CASES.items():
        stock_options = StockOptions(**with_defaults(given))
        market = load_market(stock_options, options.device)
        loop = loop_play(market, stock_options)
        for threads in sorted({1, default_threads}):
            torch.set_num_threads(threads)
            batch = batch_play(market, stock_options, options.count, options.device)
            pairs = [
                (rate(loop, HORIZON, seconds), rate(batch, HORIZON * options.count, seconds))
                for _ in range(repetitions)
            ]
            print_line(f"{name}/{options.count} accounts/{options.device}/{threads} threads", pairs)


def loop_play(market: Market, options: StockOptions) -> Callable[[], None]:
    """Makes HORIZON steps of one account."""
    account = OneAccount(market, options)
    actions = np.random.default_rng(1).uniform(-1, 1, (HORIZON, market.close.shape[1])).astype(np.float32)

    def play() -> None:
        for action in actions:
            account.step(action)

    return play


def batch_play(market: Market, options: StockOptions, count: int, device: str) -> Callable[[], None]:
    """Makes HORIZON steps of all accounts; on a GPU as a CUDA graph."""
    stocks = StockSimulator(market, options, count)
    on_gpu = torch.device(device).type == "cuda"
    simulator: Simulator = CudaGraphSimulator(stocks, [stocks.generator]) if on_gpu else stocks
    actions = 2 * torch.rand(HORIZON, count, market.close.shape[1], device=device) - 1

    def play() -> None:
        for action in actions:
            simulator.step(action)
        if on_gpu:
            torch.cuda.synchronize()

    return play


def rate(play: Callable[[], None], steps: int, seconds: float) -> float:
    """Measures environment steps per second."""
    play()
    plays, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        play()
        plays += 1
    return plays * steps / (time.perf_counter() - began)


def print_line(case: str, pairs: list[tuple[float, float]]) -> None:
    """Prints one result."""
    line = {
        "benchmark": "stocks",
        "case": case,
        "metric": "steps_per_second",
        "value": round(statistics.median(batch for _, batch in pairs)),
        "unit": "1/s",
        "against": "one account in a numpy loop",
        "against_value": round(statistics.median(loop for loop, _ in pairs)),
        "ratio": round(statistics.median(batch / loop for loop, batch in pairs), 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
