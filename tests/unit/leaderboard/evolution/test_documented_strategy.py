"""The strategy that docs/extending.md shows works with the entries that the page lists."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.strategy import Strategy
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_FRESH
from podrace.specification import catalog, evolution_settings

PAGE = (Path(__file__).parents[4] / "docs" / "extending.md").read_text()


@pytest.fixture
def _greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy of the page under the name `greedy`."""
    block = re.search(r"`leaderboard/evolution/greedy\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    module: dict[str, Any] = {}
    exec(block[1], module)
    monkeypatch.setitem(STRATEGIES, "greedy", Strategy(module["propose"]))  # type: ignore[arg-type]
    monkeypatch.setitem(catalog.STRATEGIES, "greedy", "the best candidate is the parent of every agent")  # type: ignore[arg-type]
    monkeypatch.setitem(evolution_settings.SETTINGS, "greedy", {})  # type: ignore[arg-type]


@pytest.mark.usefixtures("_greedy")
def test_every_child_continues_from_the_best(make_race: Callable[..., Any]):
    race = make_race({"strategy": "greedy", "fresh_probability": 0.0}, seed=3, noise=0.0).run(20)
    children = [each.agent for each in race.generations if each.agent.origin != ORIGIN_FRESH]
    assert len(children) >= 10
    assert all(child.reason.startswith("the best: ") for child in children)
