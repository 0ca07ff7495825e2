"""Defines the tasks of the comparison: environment, search space, what is fixed for every contender, and budgets. Pure.

All contenders of a task have the same environments, network, rollout and search space. What is not searched has
podrace's default, whose values the other libraries get as well.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
UNKNOWN, UNKNOWN_LONG, FIRST_DEFAULT, DEFAULTS = "unknown", "unknown-long", "first-default", "defaults"
CONDITIONS = (UNKNOWN, UNKNOWN_LONG, FIRST_DEFAULT, DEFAULTS)
"""Where the first agent's values come from: the prior; the prior, with LONG times the budget; the library's defaults,
with the same wide search space; the library's defaults, with podrace's usual search space."""
DRAWN = (UNKNOWN, UNKNOWN_LONG)
"""Conditions under which the first agent's values are drawn from the prior."""
LONG = 3.0
"""In 60 s, drawn values that make training slow leave some trials of other libraries without a score."""
LINEAR, LOG, REVERSE_LOG = "linear", "log", "reverse_log"


@dataclass(frozen=True)
class Prior:
    """The distribution of one hyperparameter."""

    low: float
    high: float
    scale: str
    """`linear`, `log`, or `reverse_log`: uniform in the logarithm of 1 - x."""
    whole: bool = False

    def at(self, position: float) -> float:
        """Returns the value at a position from 0 to 1."""
        if self.scale == LOG:
            value = self.low * (self.high / self.low) ** position
        elif self.scale == REVERSE_LOG:
            value = 1 - (1 - self.low) * ((1 - self.high) / (1 - self.low)) ** position
        else:
            value = self.low + position * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return float(round(value)) if self.whole else value

    def position(self, value: float) -> float:
        """Returns the position of a value: the inverse of `at`, without rounding."""
        if self.scale == LOG:
            return math.log(value / self.low) / math.log(self.high / self.low)
        if self.scale == REVERSE_LOG:
            return math.log((1 - value) / (1 - self.low)) / math.log((1 - self.high) / (1 - self.low))
        return (value - self.low) / (self.high - self.low)


WIDE: Mapping[str, Prior] = {
    "learning_rate": Prior(1e-5, 1e-1, LOG),
    "discount": Prior(0.9, 0.9999, REVERSE_LOG),
    "gae_lambda": Prior(0.8, 1.0, LINEAR),
    "entropy_coefficient": Prior(1e-8, 1e-1, LOG),
    "clip_range": Prior(0.05, 0.4, LINEAR),
    "epochs": Prior(1, 10, LINEAR, whole=True),
    "minibatch_size": Prior(64, 1024, LOG, whole=True),
}
"""The search space where nothing is known."""
USUAL: Mapping[str, Prior] = {
    "learning_rate": Prior(1e-4, 3e-3, LOG),
    "gae_lambda": Prior(0.9, 0.99, LINEAR),
    "entropy_coefficient": Prior(1e-5, 2e-2, LOG),
    "clip_range": Prior(0.1, 0.3, LINEAR),
}
"""The search space around podrace's defaults."""
ALGORITHM = "ppo"


@dataclass(frozen=True)
class Task:
    """One task."""

    id: str
    """Id of the simulator."""
    seconds: float
    """Wall-clock budget of a run."""
    every_steps: int
    """Environment steps of an agent between two scores."""
    trial_steps: int
    """Environment steps of a trial of another library that is not stopped early."""
    count: int = 16
    """Environments of a learner."""
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluation_options: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters that are not searched and differ from podrace's defaults."""
    score_episodes: int = 32
    """Episodes of a score of another library; podrace has its own number and limits their share of the time."""
    curve_episodes: int = 128
    """Fresh episodes of each point of the anytime curve."""
    backtest: bool = False
    """Whether the final policy is also evaluated on the backtest split."""
    sampled_actions: bool = False

    @property
    def rollout_steps(self) -> int:
        """Environment steps of one rollout."""
        return self.count * int(self.fixed.get("horizon", 128))

    def budget(self, conditions: str) -> float:
        """Returns the wall-clock budget of a run in seconds."""
        return self.seconds * (LONG if conditions == UNKNOWN_LONG else 1.0)

    def evaluation(self) -> dict[str, Any]:
        """Returns the options of the environments in which policies are scored."""
        return {**self.options, **self.evaluation_options}


def _stocks() -> Task:
    """Returns the task of examples/stocks.toml."""
    values = tomllib.loads((EXAMPLES / "stocks.toml").read_text())
    hyperparameters = values["algorithms"]["ppo"]["hyperparameters"]
    return Task(
        "stocks",
        seconds=60,
        every_steps=65_536,
        trial_steps=524_288,
        count=int(values["environment"]["count"]),
        options=values["environment"]["options"],
        evaluation_options=values["evaluation"]["options"],
        fixed={"horizon": hyperparameters["horizon"]},
        backtest=True,
    )


TASKS: Mapping[str, Task] = {
    "pendulum": Task("pendulum", seconds=60, every_steps=20_480, trial_steps=163_840),
    "acrobot": Task("acrobot", seconds=60, every_steps=20_480, trial_steps=163_840),
    "lunarlander": Task(
        "LunarLander-v3", seconds=60, every_steps=20_480, trial_steps=163_840, score_episodes=16, curve_episodes=64
    ),
    "docking": Task(
        "python:benchmarks.tournament_tasks:docking", seconds=60, every_steps=32_768, trial_steps=262_144, count=32,
        fixed={"horizon": 64, "hidden_sizes": [32, 32]},
    ),
    "swing": Task(
        "python:benchmarks.tournament_tasks:swing", seconds=60, every_steps=32_768, trial_steps=262_144, count=32,
        fixed={"horizon": 64, "hidden_sizes": [32, 32]},
    ),
    "stocks": _stocks(),
    "halfcheetah": Task(
        "mujoco:HalfCheetah-v5", seconds=180, every_steps=32_768, trial_steps=524_288, curve_episodes=32
    ),
    "ant": Task("mujoco:Ant-v5", seconds=300, every_steps=32_768, trial_steps=524_288, curve_episodes=16),
}  # fmt: skip


def space_of(conditions: str) -> Mapping[str, Prior]:
    """Returns the search space under some conditions."""
    return USUAL if conditions == DEFAULTS else WIDE
