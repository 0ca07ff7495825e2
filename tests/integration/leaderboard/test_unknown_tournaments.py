"""Reads and watches about a tournament that does not exist are NOT_FOUND; those about one without agents are empty."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.submission_watch import SubmissionWatch
from podrace import rpc
from podrace.access.ownership import Ownership
from podrace.database import Database, Transaction
from podrace.errors import NamedResource, NotFound
from podrace.leaderboard.v1 import leaderboard_pb2 as pb

TOURNAMENT = "cartpole-abc123"
SECONDS = 20.0
READS: dict[str, Callable[[str], Any]] = {
    "ListCandidates": lambda name: pb.ListCandidatesRequest(tournament_id=name),
    "GetLineage": lambda name: pb.GetLineageRequest(tournament_id=name),
    "GetStatistics": lambda name: pb.GetStatisticsRequest(tournament_id=name),
    "ReplayTournament": lambda name: pb.ReplayTournamentRequest(tournament_id=name),
    "ListSnapshots": lambda name: pb.ListSnapshotsRequest(tournament_id=name),
    "ReviewAgents": lambda name: pb.ReviewAgentsRequest(tournament_id=name),
}


async def read(client: Any, method: str, name: str = TOURNAMENT) -> Any:
    stub = client.generator if method == "ReviewAgents" else client.reading
    return await client.call(getattr(stub, method), READS[method](name))


def watch_of(client: Any) -> Any:
    return rpc.stream(
        client.reading.WatchCandidates, pb.WatchCandidatesRequest(tournament_id=TOURNAMENT), deadline_seconds=SECONDS
    )


def test_every_read_of_a_tournament_is_tried() -> None:
    methods = pb.DESCRIPTOR.services_by_name["LeaderboardService"].methods
    named = {one.name for one in methods if "tournament_id" in one.input_type.fields_by_name}
    assert named - READS.keys() == {"WatchCandidates", "NameChampion"}


@pytest.mark.parametrize("method", READS)
async def test_a_read_of_an_unknown_tournament_is_not_found_and_names_it(client: Any, method: str) -> None:
    await client.register("known-abc123")
    with pytest.raises(NotFound, match="unknown tournament 'cartpole-abc123'; known: known-abc123") as raised:
        await read(client, method)
    assert raised.value.resource == NamedResource("tournament", TOURNAMENT)


@pytest.mark.parametrize("method", READS)
async def test_a_registered_tournament_without_agents_is_answered(client: Any, method: str) -> None:
    await client.register(TOURNAMENT)
    assert (await read(client, method)).ByteSize() == 0


async def test_a_watch_of_an_unknown_tournament_is_not_found_and_names_it(client: Any) -> None:
    with pytest.raises(NotFound) as raised:
        await anext(watch_of(client))
    assert raised.value.resource == NamedResource("tournament", TOURNAMENT)


async def test_a_watch_that_begins_before_the_first_agent_gets_every_submission(client: Any) -> None:
    await client.register(TOURNAMENT)
    first = asyncio.ensure_future(anext(watch_of(client)))
    await client.submit(await client.generate(0), 7.0)
    assert (await first).candidate.score == 7.0


async def test_a_deleted_tournament_is_not_found_and_its_watches_end(client: Any, watch: SubmissionWatch) -> None:
    await client.submit(await client.generate(0), 7.0)
    responses = watch_of(client)
    assert (await anext(responses)).candidate.score == 7.0
    waiting = asyncio.ensure_future(anext(responses))
    await client.call(client.updater.DeleteTournament, pb.DeleteTournamentRequest(tournament_id=TOURNAMENT))
    with pytest.raises(NotFound):
        await waiting
    for method in READS:
        with pytest.raises(NotFound):
            await read(client, method)
    with pytest.raises(NotFound):
        await client.call(client.reading.GetAgent, pb.GetAgentRequest(agent_id=f"{TOURNAMENT}-a0"))


async def test_a_registered_tournament_without_agents_can_be_deleted(client: Any) -> None:
    await client.register(TOURNAMENT, "kept-abc123")
    await client.call(client.updater.DeleteTournament, pb.DeleteTournamentRequest(tournament_id=TOURNAMENT))
    with pytest.raises(NotFound):
        await read(client, "ListCandidates")
    assert not (await read(client, "ListCandidates", "kept-abc123")).candidates


async def test_a_registration_that_is_repeated_changes_nothing(client: Any) -> None:
    await client.submit(await client.generate(0), 7.0)
    await client.register(TOURNAMENT, TOURNAMENT)
    assert len((await read(client, "ListCandidates")).candidates) == 1


@pytest.mark.parametrize("wrong", [pb.RegisteredTournament(), pb.RegisteredTournament(tournament_id="a b")])
async def test_a_registration_without_a_proper_id_is_refused(client: Any, wrong: pb.RegisteredTournament) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.updater.RegisterTournaments(pb.RegisterTournamentsRequest(tournaments=[wrong]), timeout=SECONDS)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_registration_survives_a_restart(
    start: Callable[..., Awaitable[Any]], connect: Callable[[], Awaitable[Any]]
) -> None:
    process = await start()
    client = await connect()
    await client.register(TOURNAMENT)
    process.kill()
    await process.wait()
    await client.channel.close()
    await start()
    client = await connect()
    assert not (await read(client, "ListCandidates")).candidates
    await client.channel.close()


def record_a_tournament_of_an_earlier_version(transaction: Transaction) -> None:
    transaction.execute("INSERT INTO tournaments VALUES (?, ?)", TOURNAMENT, b"")


async def test_the_tournaments_of_a_database_of_an_earlier_version_are_known(folder: Path) -> None:
    """Before tournaments had owners, a tournament was recorded with its first agent only."""
    state = Database.open(folder / "leaderboard.sqlite", DATABASE_FORMAT, lambda: 1.7e9)
    await state.transact(record_a_tournament_of_an_earlier_version)
    (await TournamentOwners.load(state)).check_known(TOURNAMENT, None)
    state.close()


async def test_an_owner_that_is_recorded_is_kept(folder: Path) -> None:
    state = Database.open(folder / "leaderboard.sqlite", DATABASE_FORMAT, lambda: 1.7e9)
    owners = await TournamentOwners.load(state)
    for owner in ("alice", "bob"):
        await owners.register(state, {TOURNAMENT: Ownership(owner)})
    for known in (owners, await TournamentOwners.load(state)):
        assert known.ownership_of(TOURNAMENT) == Ownership("alice")
    state.close()
