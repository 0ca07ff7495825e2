"""The strategies by what they have, for tests of rules that all strategies or those with a property obey.

A test that is parametrized by one of these lists covers a new strategy without a change.
"""

from importlib.util import find_spec
from typing import Any

import pytest

from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.populations.population import propose_for_seat
from podrace.specification import evolution_settings

CONTROL = "random-search"
"""The strategy that every other one is compared with. It alone never makes children."""


def has_population(name: str) -> bool:
    return "population_size" in evolution_settings.SETTINGS[name]


def has_founders(name: str) -> bool:
    return "founder_share" in evolution_settings.SETTINGS[name]


def settings_of(name: str, **settings: Any) -> dict[str, Any]:
    """The `[evolution]` section of a strategy, with those of the settings that it accepts."""
    accepted = evolution_settings.DEFAULTS.keys() | evolution_settings.SETTINGS[name].keys()
    return {"strategy": name} | {key: value for key, value in settings.items() if key in accepted}


def _parameters(names: list[str]) -> list[Any]:
    """Names as parameters of tests; a strategy whose optional package is not installed is skipped."""
    absent = {name for name in names if (module := STRATEGIES[name].requires) and find_spec(module) is None}
    skip = pytest.mark.skip(reason="its optional package is not installed")
    return [pytest.param(name, marks=[skip] * (name in absent)) for name in names]


EVERY = _parameters(list(STRATEGIES))
WITH_CHILDREN = _parameters([name for name in STRATEGIES if name != CONTROL])
WITH_POPULATION = _parameters([name for name in STRATEGIES if has_population(name)])
"""Strategies with the setting `population_size`."""
WITH_SEATS = _parameters(
    [name for name, strategy in STRATEGIES.items() if getattr(strategy.propose, "func", None) is propose_for_seat]
)
"""Strategies that are made of `propose_for_seat`: a seat has one agent at a time."""
FROM_THE_BOARD = _parameters(
    [
        name
        for name, strategy in STRATEGIES.items()
        if name != CONTROL and not strategy.reads_history and strategy.fold is None
    ]
)
"""Strategies whose parents are on the board, because they read neither the history nor the whole log."""
