"""Wraps single lanes of podrace's simulators as Gymnasium environments, for peers that step single environments.

This is a separate module because RLlib's processes import it by name.
"""

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1]


def make_lane(id: str, options: Mapping[str, Any]) -> Any:
    """Makes one lane of one of podrace's simulators as a gymnasium.Env."""
    import gymnasium
    import numpy as np
    import torch
    from gymnasium.spaces import Box

    class Lane(gymnasium.Env):  # type: ignore[misc]
        def __init__(self) -> None:
            self.simulator = make_simulator(id, json.dumps(dict(options), sort_keys=True))
            observed, acted = self.simulator.observation_space, self.simulator.action_space
            self.observation_space = Box(-np.inf, np.inf, observed.shape, np.float32)
            self.action_space = Box(
                np.array(acted.low, np.float32).reshape(acted.shape),
                np.array(acted.high, np.float32).reshape(acted.shape),
            )

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.simulator.reset(int(self.np_random.integers(2**31))).numpy()[0].copy(), {}

        def step(self, action: Any) -> Any:
            step = self.simulator.step(torch.as_tensor(action, dtype=torch.float32).reshape(1, -1))
            ended = bool(step.terminated[0] | step.truncated[0])
            observation = step.final_observation if ended else step.observation
            return (
                observation[0].numpy().copy(),
                float(step.reward[0]),
                bool(step.terminated[0]),
                bool(step.truncated[0]),
                {},
            )

    return Lane()


def make_simulator(id: str, options: str) -> Any:
    """Makes a simulator with one lane; prices are loaded once for all lanes of a process."""
    # A benchmark of this folder has the same name as the package simulators.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != FOLDER]
    from simulators import make

    if id != "stocks":
        return make(id, 1, options=json.loads(options))
    from simulators.options import parse_options
    from simulators.stocks import StockOptions, StockSimulator, with_defaults

    parsed = parse_options(id, with_defaults(json.loads(options)), StockOptions)
    return StockSimulator(market_of(parsed), parsed, 1)


@functools.cache
def market_of(options: Any) -> Any:
    """Loads the prices of a split."""
    from simulators.stocks.market import load_market

    return load_market(options)
