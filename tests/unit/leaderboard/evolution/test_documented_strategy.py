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
    for registry in (STRATEGIES, catalog.STRATEGIES, evolution_settings.SETTINGS):
        assert "greedy" not in registry, "the page shows a strategy that exists: give its example another name"
    block = re.search(r"`leaderboard/evolution/greedy\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    module: dict[str, Any] = {}
    exec(block[1], module)
    monkeypatch.setitem(STRATEGIES, "greedy", Strategy(module["propose"]))  # type: ignore[arg-type]
    monkeypatch.setitem(catalog.STRATEGIES, "greedy", "the parent is the best candidate that may have another child")  # type: ignore[arg-type]
    monkeypatch.setitem(evolution_settings.SETTINGS, "greedy", {})  # type: ignore[arg-type]


@pytest.mark.usefixtures("_greedy")
def test_the_parent_of_every_child_is_the_best_candidate_that_may_have_another_child(make_race: Callable[..., Any]):
    settings = {"strategy": "greedy", "fresh_probability": 0.0}
    race = make_race(settings, seed=3, noise=0.0, pods=6, slow={"ppo": 4})
    ranks = []
    for number in range(4, 24):
        race.run(number)
        agent, _ = race.next()
        possible = [rank for rank, one in enumerate(race.board, 1) if race.unfinished_children[one.agent_id] < 2]
        if not possible:
            assert agent.origin == ORIGIN_FRESH
            continue
        ranks.append(possible[0])
        assert list(agent.parent_agent_ids) == [race.board[possible[0] - 1].agent_id]
        assert agent.reason.startswith("the best: ")
    assert {1, 2} <= set(ranks)
