"""A wall clock of the leaderboard that jumps by hours loses no candidate and no file that is needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.garbage import collect_once
from leaderboard.ranking.retention import Retention
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import fetch
from podrace.errors import NotFound
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

HOUR = 3600.0
MakeSpec = Callable[..., TournamentSpec]


class StoreClock:
    """The clock of the store, which does not jump."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("jump", [12 * HOUR, -12 * HOUR])
async def test_the_collection_goes_by_the_clock_of_the_store(
    mesh: Any, make_spec: MakeSpec, tmp_path: Path, jump: float
) -> None:
    clock = StoreClock()
    store = FolderStore(tmp_path / "store", clock)
    spec = make_spec(evolution={"initial_agents": 3, "fresh_probability": 0.0, "board_capacity": 1})
    agents = [await mesh.generate(spec, number) for number in range(2)]
    board = [(await mesh.submit(agent, 9.0 - agent.number)).candidate.candidate_id for agent in agents]
    unpublished = store.put_object(b"a part of a checkpoint that is being published")
    mesh.clock.now += jump
    child = await mesh.generate(spec, 2, [agents[1].agent_id])
    last = (await mesh.submit(child, 20.0)).candidate.candidate_id
    await collect_once(mesh.state, store, grace_seconds=HOUR, retention=Retention())
    assert store.has_object(unpublished), "by the clock of the store it is young"
    clock.now += 2 * HOUR
    await collect_once(mesh.state, store, grace_seconds=HOUR, retention=Retention())
    with pytest.raises(NotFound):
        store.get_object(unpublished)
    for name in (*board, last):
        fetch(mesh.store, name)
    assert [candidate.candidate_id for candidate in await mesh.board()] == [last]
    assert await mesh.replay() == []
