"""Tournaments that their owner deletes, and those that were kept long enough."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archiving import Archiving
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.state.deletion_records import pending_deletions
from orchestrator.tournaments.deletion import CHECK_SECONDS, Deletion
from podrace.errors import FailedPrecondition, NotFound, Unavailable


class Leaderboard:
    """Records what is deleted; does not answer while `refusal` is set."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.archived: dict[str, list[dict[str, Any]]] = {}
        self.refusal: Unavailable | None = None
        self.answering = asyncio.Event()
        self.answering.set()

    async def delete_tournament(self, tournament_id: str) -> None:
        if self.refusal:
            raise self.refusal
        await self.answering.wait()
        self.deleted.append(tournament_id)

    async def archive_tournament(self, tournament_id: str, records: bytes) -> None:
        if self.refusal:
            raise self.refusal
        self.archived[tournament_id] = [json.loads(line) for line in gzip.decompress(records).splitlines()]


def deletion_of(
    mesh: Any, folder: Path, keep_seconds: float = 0.0, archive_all: bool = False
) -> tuple[Deletion, Leaderboard]:
    leaderboard: Any = Leaderboard()
    deletion = Deletion(
        *(mesh.state, mesh.runtime, leaderboard, mesh.clock),
        log_folder=folder,
        keep_seconds=keep_seconds,
        archive=Archiving(mesh.state, mesh.runtime, leaderboard, mesh.clock).archive,
        archive_all=archive_all,
    )
    return deletion, leaderboard


async def test_a_tournament_is_deleted_after_its_end_and_with_its_logs(mesh, spec, tmp_path):
    name = await mesh.create(spec())
    other = await mesh.create(spec())
    await mesh.cycle()
    for end in ("", ".1", ".2"):
        (tmp_path / f"{name}-p0.log{end}").write_text("x")
    deletion, leaderboard = deletion_of(mesh, tmp_path)
    with pytest.raises(FailedPrecondition, match="has not ended; stop it first"):
        await deletion.delete(name)
    await mesh.cancel(name)
    with pytest.raises(FailedPrecondition, match="still exiting"):
        await deletion.delete(name)
    mesh.launcher.pods = {pod_id: pod for pod_id, pod in mesh.launcher.pods.items() if pod.tournament_id != name}
    await mesh.cycle(30.0)
    await deletion.delete(name)
    with pytest.raises(NotFound):
        await mesh.get(name)
    assert leaderboard.deleted == [name]
    with pytest.raises(NotFound):
        await mesh.events(name)
    assert name not in {event.tournament_id for event in await mesh.events("")}
    assert not list(tmp_path.glob("*.log*"))
    assert name not in mesh.runtime.cache.tournaments
    assert (await mesh.get(other)).tournament_id == other
    await deletion.delete(name)


async def test_a_tournament_that_ends_and_is_deleted_between_two_cycles_does_not_stop_the_others(mesh, spec, tmp_path):
    (capacity,) = mesh.capacity
    mesh.capacity.append(Capacity(Resources(0.0, 0, 0), 0))
    name, other = await mesh.create(spec()), await mesh.create(spec())
    await mesh.cycle()
    await mesh.cancel(name)
    deletion, _ = deletion_of(mesh, tmp_path)
    await deletion.delete(name)
    mesh.capacity.append(capacity)
    await mesh.cycle(1.0)
    assert {pod.tournament_id for pod in mesh.launcher.pods.values()} == {other}
    assert mesh.runtime.running_time.take_unsaved().keys() <= {other}


async def test_what_the_leaderboard_has_is_deleted_when_it_answers_again(mesh, spec, tmp_path):
    name = await mesh.create(spec())
    await mesh.cancel(name)
    deletion, leaderboard = deletion_of(mesh, tmp_path)
    leaderboard.refusal = Unavailable("gone")
    await deletion.delete(name)
    assert await mesh.state.transact(pending_deletions) == [name]
    leaderboard.refusal = None
    mesh.clock.now += CHECK_SECONDS
    await deletion.delete_due()
    assert leaderboard.deleted == [name]
    assert await mesh.state.transact(pending_deletions) == []


async def test_ended_tournaments_are_deleted_when_their_time_has_passed(mesh, spec, tmp_path):
    ended, running = await mesh.create(spec()), await mesh.create(spec())
    await mesh.cancel(ended)
    deletion, leaderboard = deletion_of(mesh, tmp_path, keep_seconds=1000.0)
    await deletion.delete_due()
    assert leaderboard.deleted == []
    mesh.clock.now += 1000.0
    await deletion.delete_due()
    assert leaderboard.deleted == [ended]
    assert (await mesh.get(running)).tournament_id == running


async def test_a_cycle_does_not_wait_for_a_deletion_and_begins_one_at_a_time(mesh, spec, tmp_path):
    ended, running = await mesh.create(spec()), await mesh.create(spec())
    await mesh.cancel(ended)
    deletion, leaderboard = deletion_of(mesh, tmp_path, keep_seconds=1000.0)
    mesh.reconciler._deletion = deletion
    leaderboard.answering.clear()
    mesh.clock.now += 1000.0
    await mesh.cycle()
    deleting = deletion._deleting
    await mesh.cycle(CHECK_SECONDS)
    assert {pod.tournament_id for pod in mesh.launcher.pods.values()} == {running}
    assert deletion._deleting is deleting
    assert not deleting.done()
    leaderboard.answering.set()
    await deleting
    assert leaderboard.deleted == [ended]


async def test_a_deletion_that_is_under_way_ends_with_the_reconciler_and_a_failed_one_is_logged(
    mesh, spec, tmp_path, log_lines
):
    ended = await mesh.create(spec())
    await mesh.cancel(ended)
    deletion, leaderboard = deletion_of(mesh, tmp_path, keep_seconds=1000.0)
    mesh.reconciler._deletion = deletion
    leaderboard.answering.clear()
    mesh.clock.now += 1000.0
    deletion.begin_due()
    await mesh.reconciler.close()
    assert deletion._deleting.cancelled()
    deletion._state = None
    mesh.clock.now += CHECK_SECONDS
    deletion.begin_due()
    await deletion._deleting
    assert "the deletion of tournaments failed; retrying" in [line["event"] for line in log_lines]


async def test_a_tournament_is_archived_before_it_is_deleted(mesh, spec, tmp_path):
    name = await mesh.create(spec())
    await mesh.cancel(name)
    deletion, leaderboard = deletion_of(mesh, tmp_path)
    leaderboard.refusal = Unavailable("gone")
    with pytest.raises(Unavailable):
        await deletion.delete(name, archive=True)
    assert (await mesh.get(name)).tournament_id == name
    leaderboard.refusal = None
    events = [event.kind for event in await mesh.events(name)]
    await deletion.delete(name, archive=True)
    kept = leaderboard.archived[name]
    assert kept[0]["record"] == "tournament"
    assert kept[0]["spec"]["environment"]["id"] == spec().environment.id
    assert [line["kind"] for line in kept if line["record"] == "event"] == events
    assert leaderboard.deleted == [name]


async def test_the_operator_has_all_tournaments_archived(mesh, spec, tmp_path):
    ended = await mesh.create(spec())
    await mesh.cancel(ended)
    deletion, leaderboard = deletion_of(mesh, tmp_path, keep_seconds=1000.0, archive_all=True)
    mesh.clock.now += 1000.0
    leaderboard.refusal = Unavailable("gone")
    await deletion.delete_due()
    assert (await mesh.get(ended)).tournament_id == ended
    leaderboard.refusal = None
    mesh.clock.now += CHECK_SECONDS
    await deletion.delete_due()
    assert (set(leaderboard.archived), leaderboard.deleted) == ({ended}, [ended])
