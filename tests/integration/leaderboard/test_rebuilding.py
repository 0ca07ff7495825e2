"""A leaderboard whose database was lost without a backup records again what the checkpoint store proves."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.rebuilding import rebuild as rebuilding
from leaderboard.rebuilding.derivation import REASON, derived_tournaments
from leaderboard.rebuilding.rebuild import rebuild, record_tournament
from leaderboard.store import records
from leaderboard.store.known_records import is_empty
from leaderboard.store.schema import DATABASE_FORMAT
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish, read_manifest
from podrace.database import Database
from podrace.errors import NotFound, ResourceExhausted
from podrace.leaderboard.v1 import leaderboard_pb2 as pb

TOURNAMENT = "cartpole-abc123"


async def test_tournament_agents_and_board_are_those_that_were_lost(client: Any, store: Any, folder: Path) -> None:
    parents = [await client.generate(number) for number in range(2)]
    before = [await client.submit(agent, score) for score in (3.0, 1.0, 7.0) for agent in parents]
    child = await client.generate(2)
    before.append(await client.submit(child, 9.0))
    later = await client.generate(4)  # an agent that never published, and one that was never generated
    board = await client.candidates()
    state = Database.open(folder / "again.sqlite", DATABASE_FORMAT, lambda: 5.0)
    (done,) = await rebuild(state, store)
    assert (done.tournament_id, done.agents, done.candidates, done.refused) == (TOURNAMENT, 3, 7, 0)
    found = await state.transact(records.read_board, TOURNAMENT)
    assert [one.candidate_id for one in found] == [one.candidate_id for one in board]
    assert [(one.score, one.agent_id, one.environment_steps) for one in found] == [
        (one.score, one.agent_id, one.environment_steps) for one in board
    ]
    everything = await state.transact(records.list_candidates, TOURNAMENT)
    assert {one.candidate_id for one in everything} == {one.candidate_id for one in before}
    assert await state.transact(records.get_spec, TOURNAMENT) == client.spec
    for agent in (*parents, child):
        again = (await state.transact(records.get_generation, agent.agent_id)).agent
        for name in ("agent_id", "number", "algorithm", "hyperparameters", "seed", "origin", "trial"):
            assert getattr(again, name) == getattr(agent, name), name
        assert again.parent_agent_ids == agent.parent_agent_ids
        assert again.starting_checkpoint == agent.starting_checkpoint
        assert again.reason == REASON
    with pytest.raises(NotFound):
        await state.transact(records.get_generation, later.agent_id)
    assert await rebuild(state, store) == [], "a database with tournaments is left as it is"
    state.close()


async def test_the_tournament_continues_after_it_was_rebuilt(
    start: Callable[..., Awaitable[Any]], connect: Callable[[], Awaitable[Any]], folder: Path
) -> None:
    process = await start()
    client = await connect()
    first = await client.generate(0)
    known = await client.submit(first, 5.0)
    await client.channel.close()
    process.kill()
    await process.wait()
    for file in folder.glob("leaderboard.sqlite*"):
        file.unlink()
    process = await start(backup__rebuild="true")
    client = await connect()
    await client.register(TOURNAMENT)
    assert [one.candidate_id for one in await client.candidates()] == [known.candidate_id]
    assert (await client.submit(first, 8.0)).rank == 1
    assert (await client.generate(0)).seed == first.seed, "an agent is not generated twice"
    assert (await client.generate(1)).number == 1
    listed = await client.call(client.updater.ListKnownTournaments, pb.ListKnownTournamentsRequest())
    assert [(one.tournament_id, one.spec) for one in listed.tournaments] == [(TOURNAMENT, client.spec)]
    assert listed.highest_lease_epoch == 1
    await client.channel.close()


async def test_what_contradicts_itself_is_not_recorded_and_damage_is_skipped(
    client: Any, store: FolderStore, folder: Path
) -> None:
    agent = await client.generate(0)
    good = await client.submit(agent, 5.0)
    manifest = read_manifest(store.within(TOURNAMENT), good.candidate_id)
    manifest.evaluation.mean_return = float("nan")
    del manifest.evaluation.episode_returns[:]
    claim(store.within(TOURNAMENT), agent.agent_id, 1)
    publish(store.within(TOURNAMENT), agent.agent_id, 1, {"policy": b"other"}, manifest)
    store.within(TOURNAMENT).put_object(b"{ no manifest")
    state = Database.open(folder / "again.sqlite", DATABASE_FORMAT, lambda: 5.0)
    (done,) = await rebuild(state, store)
    assert (done.candidates, done.refused) == (1, 1)
    assert [one.candidate_id for one in await state.transact(records.read_board, TOURNAMENT)] == [good.candidate_id]
    state.close()


async def test_a_rebuild_that_was_interrupted_between_two_tournaments_is_complete_after_the_next_start(
    client: Any, store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the garbage collection would delete the checkpoints of the tournaments that are missing."""
    names = [TOURNAMENT, "cartpole-def456"]
    for name in names:
        await client.submit(await client.generate(0, name), 5.0)
    state = Database.open(folder / "again.sqlite", DATABASE_FORMAT, lambda: 5.0)

    def record_the_first(transaction: Any, derived: Any, manifests: Any) -> Any:
        if derived.tournament_id != TOURNAMENT:
            raise ResourceExhausted("the disk is full")
        return record_tournament(transaction, derived, manifests)

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "record_tournament", record_the_first)
        with pytest.raises(ResourceExhausted):
            await rebuild(state, store)
    assert await state.transact(is_empty), "nothing of an interrupted rebuild is kept"
    assert [one.tournament_id for one in await rebuild(state, store)] == names
    state.close()


def manifest(number: int, **fields: Any) -> Manifest:
    made = Manifest(agent_id=f"t-1-a{number}", tournament_id="t-1", algorithm="ppo", seed=number, **fields)
    made.spec.update({"name": "t"})
    return made


def test_an_agent_with_the_seed_of_its_parent_continues_it_and_gaps_are_named_as_lost() -> None:
    manifests = {
        "a": manifest(0),
        "b": manifest(1, starting_manifest_digest="a"),
        "c": manifest(4, starting_manifest_digest="b"),
        "d": manifest(5, starting_manifest_digest="gone"),
        "e": Manifest(agent_id="t-1-a9", tournament_id="other-2", snapshot=True),
    }
    manifests["c"].seed = 1
    for time, one in enumerate(manifests.values(), start=1):
        one.publish_time.FromSeconds(time)
    (derived,) = derived_tournaments(manifests)
    by_number = {one.agent.number: one for one in derived.agents}
    assert {number: one.agent.trial for number, one in by_number.items()} == {0: 0, 1: 1, 4: 1, 5: 5}
    assert {number: one.depth for number, one in by_number.items()} == {0: 0, 1: 1, 4: 1, 5: 0}
    assert by_number[4].agent.origin == pb.ORIGIN_CONTINUATION
    assert by_number[5].agent.origin == pb.ORIGIN_FRESH
    assert derived.lost[0] == "2 agents without a checkpoint"
    assert not derived.candidates


def test_nothing_is_proven_by_an_empty_store() -> None:
    assert derived_tournaments({}) == []
