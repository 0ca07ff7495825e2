"""A wall clock of the leaderboard that jumps by hours loses no candidate and no file that is needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.garbage import RecentAgents, collect_once
from leaderboard.ranking.retention import Retention
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import fetch
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import NotFound
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

HOUR = 3600.0
DAY = 24 * HOUR
MakeSpec = Callable[..., TournamentSpec]


class TrueClock:
    """Counts real time, as the store and the monotonic clock of the leaderboard do."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def true_clock() -> TrueClock:
    return TrueClock()


@pytest.fixture
def store(mesh: Any, tmp_path: Path, true_clock: TrueClock) -> FolderStore:
    mesh.store = FolderStore(tmp_path / "store", true_clock)
    return mesh.store  # type: ignore[no-any-return]


def readable(store: CheckpointStore, manifest_digest: str) -> bool:
    try:
        fetch(store, manifest_digest)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("jump", [12 * HOUR, -12 * HOUR])
async def test_the_collection_goes_by_the_clock_of_the_store(
    mesh: Any, make_spec: MakeSpec, store: FolderStore, true_clock: TrueClock, jump: float
) -> None:
    spec = make_spec(evolution={"initial_agents": 3, "fresh_probability": 0.0, "board_capacity": 1})
    agents = [await mesh.generate(spec, number) for number in range(2)]
    board = [(await mesh.submit(agent, 9.0 - agent.number)).candidate.candidate_id for agent in agents]
    unpublished = store.put_object(b"a part of a checkpoint that is being published")
    mesh.clock.now += jump
    child = await mesh.generate(spec, 2, [agents[1].agent_id])
    last = (await mesh.submit(child, 20.0)).candidate.candidate_id
    await collect_once(mesh.state, store, grace_seconds=HOUR, retention=Retention())
    assert store.has_object(unpublished), "by the clock of the store it is young"
    true_clock.now += 2 * HOUR
    await collect_once(mesh.state, store, grace_seconds=HOUR, retention=Retention())
    assert not store.has_object(unpublished)
    assert all(readable(store, name) for name in (*board, last))
    assert [candidate.candidate_id for candidate in await mesh.board()] == [last]
    assert await mesh.replay() == []


@pytest.mark.parametrize("jump", [12 * HOUR, -12 * HOUR])
async def test_a_new_agent_keeps_what_it_starts_from_although_its_parent_is_evicted_and_it_counts_as_ended(
    mesh: Any, make_spec: MakeSpec, store: FolderStore, true_clock: TrueClock, jump: float
) -> None:
    recent = await RecentAgents.load(mesh.state, HOUR, true_clock)
    spec = make_spec(evolution={"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 1})
    first, second = [await mesh.generate(spec, number) for number in range(2)]
    start = (await mesh.submit(first, 5.0)).candidate.candidate_id
    await mesh.submit(first, 4.0)
    true_clock.now += 2 * HOUR
    child = await mesh.generate(spec, 2, [])
    assert child.starting_checkpoint.manifest_digest == start
    # Another replica takes over, whose clock differs.
    mesh.clock.now += jump
    await mesh.submit(second, 50.0)
    for score in (3.0, 2.0, 1.0):
        mesh.publish(first, score)
    await mesh.generate(spec, 3, [])  # its request was sent before agent 2 was known, so that one counts as ended

    async def is_there(passed: float) -> bool:
        true_clock.now += passed
        after = await recent.position()
        await collect_once(mesh.state, store, grace_seconds=HOUR, retention=Retention(), recent_after=after)
        return readable(store, start)

    assert await is_there(0.0)
    assert await is_there(HOUR - 1)
    assert [await is_there(HOUR), await is_there(HOUR)][-1] is False, "by now it has published, or it is gone"


@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY])
async def test_a_tournament_is_idle_by_the_clock_of_the_store(
    mesh: Any, make_spec: MakeSpec, store: FolderStore, true_clock: TrueClock, jump: float
) -> None:
    spec = make_spec(
        evolution={"initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 2}, champion={"reevaluate_top": 1}
    )
    agents = [await mesh.generate(spec, number) for number in range(2)]
    board = [(await mesh.submit(agent, 9.0 - agent.number)).candidate.candidate_id for agent in agents]
    for agent in agents:
        await mesh.submit(agent, -9.0)
        for score in (-10.0, -11.0):
            mesh.publish(agent, score)
    mesh.clock.now += jump
    cut = Retention(best_of_idle_board=1, idle_seconds=30 * DAY)
    for passed, left in ((2 * HOUR, [True, True]), (30 * DAY, [True, False])):
        true_clock.now += passed
        await collect_once(mesh.state, store, grace_seconds=HOUR, retention=cut)
        assert [readable(store, name) for name in board] == left
