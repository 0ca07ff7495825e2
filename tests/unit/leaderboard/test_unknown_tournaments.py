"""A collection deletes nothing of tournaments that the database does not know: another leaderboard may need it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from leaderboard.checkpoints.checkpoint_quotas import Measured
from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.garbage import collect_once
from leaderboard.ranking.retention import Retention
from leaderboard.store.owners import TournamentOwners
from podrace.backup.archives import Archives
from podrace.backup.copies import Backups
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.publish import claim, publish
from podrace.checkpoint_store.store import Place
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

HOUR = 3600.0
UNKNOWN = "cheetah-def456"
MakeSpec = Callable[..., TournamentSpec]


async def collected(mesh: Any) -> tuple[list[str], Measured]:
    found: list[Measured] = []
    deleted = await collect_once(
        mesh.state, mesh.store, grace_seconds=HOUR, retention=Retention(), on_measured=found.append
    )
    return deleted, found[0]


def publish_three(mesh: Any, tournament_id: str) -> list[str]:
    """Publishes three checkpoints of an agent, of which its pointer names the last two; returns their manifests."""
    store, agent_id = mesh.store.within(tournament_id), f"{tournament_id}-a0"
    claim(store, agent_id, 1)
    return [
        publish(store, agent_id, 1, {"policy": b"policy %d" % number}, Manifest(tournament_id=tournament_id))
        for number in range(3)
    ]


def places(mesh: Any) -> set[Place]:
    return {Place(stored.tournament_id, stored.digest) for stored in mesh.store.list_objects()}


async def test_a_database_that_was_lost_deletes_no_checkpoints(mesh: Any) -> None:
    publish_three(mesh, UNKNOWN)
    mesh.clock.now += 2 * HOUR
    deleted, measured = await collected(mesh)
    assert deleted == []
    assert measured.kept_bytes == {UNKNOWN: sum(stored.size_bytes for stored in mesh.store.list_objects())}


async def test_a_leaderboard_deletes_only_files_of_its_own_tournaments(mesh: Any, make_spec: MakeSpec) -> None:
    publish_three(mesh, UNKNOWN)
    others = places(mesh)
    agent = await mesh.generate(make_spec(), 0)
    await mesh.submit(agent, 5.0)
    garbage = mesh.store.within(agent.tournament_id).put_object(b"a part whose manifest was never written")
    mesh.clock.now += 2 * HOUR
    deleted, _ = await collected(mesh)
    assert deleted == [garbage]
    assert others <= places(mesh)


async def test_files_of_podrace_0_1_0_are_kept_while_the_store_has_agents_of_an_unknown_tournament(mesh: Any) -> None:
    publish_three(mesh, UNKNOWN)
    shared = mesh.store.put_object(b"a part of a candidate of podrace 0.1.0")
    mesh.clock.now += 2 * HOUR
    assert (await collected(mesh))[0] == []
    mesh.store.delete_pointer(f"{UNKNOWN}-a0")
    assert (await collected(mesh))[0] == [shared]


async def test_a_tournament_that_is_being_deleted_is_collected(mesh: Any, make_spec: MakeSpec) -> None:
    agent = await mesh.generate(make_spec(), 0)
    await mesh.submit(agent, 5.0)
    await TournamentDeletion(mesh.state, mesh.store, TournamentOwners()).delete(agent.tournament_id)
    garbage = mesh.store.within(agent.tournament_id).put_object(b"published by the last pod")
    mesh.clock.now += 2 * HOUR
    assert (await collected(mesh))[0] == [garbage]


async def test_what_backups_and_archives_no_longer_need_is_deleted(mesh: Any, tmp_path: Path) -> None:
    copy, backups = tmp_path / "copy", Backups(mesh.store, "another", "leaderboard")
    backups.claim(1)
    for number in range(3):
        copy.write_bytes(b"database %d" % number)
        backups.write(copy, 1, "database id", mesh.clock.now + number, hours=0)
        Archives(mesh.store).write("race", {"file": b"%d" % number}, mesh.clock.now)
    mesh.clock.now += 2 * HOUR
    backup_files, archive_files = 3, 2
    assert len((await collected(mesh))[0]) == backup_files + archive_files
    assert len(backups.list()) == 2
    assert Archives(mesh.store).read("race") == {"file": b"2"}
