"""Which tournaments the leaderboard knows, after failures, restarts and deletions."""

import asyncio
from typing import Any

import pytest
from fake_services import FakeLeaderboard

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.tournaments.registration import MOST_AT_ONCE, REPEAT_SECONDS, Registration
from podrace import rpc
from podrace.access.authenticators.unix_socket import local_user
from podrace.access.guard import Guard
from podrace.access.ownership import Ownership
from podrace.errors import Internal, PodraceError, Unavailable, Unimplemented
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc

SECONDS = 10.0


async def next_registration(board: FakeLeaderboard) -> list[str]:
    return await asyncio.wait_for(board.registrations.get(), SECONDS)


async def until_registered(mesh: Any, *names: str) -> None:
    """Runs cycles until the orchestrator knows that the leaderboard knows the tournaments."""
    async with asyncio.timeout(SECONDS):
        while not mesh.runtime.registered.issuperset(names):
            await mesh.cycle()


async def test_a_tournament_is_registered_with_its_owner_before_its_creation_is_answered(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    ((registered, (owner, namespace)),) = mesh.leaderboard.registered.items()
    assert (registered, namespace) == (name, "")
    assert owner == mesh.runtime.cache.ownership_of(name).owner


async def test_a_tournament_that_is_registered_is_not_registered_in_every_cycle(mesh: Any, spec: Any) -> None:
    await until_registered(mesh, await mesh.create(spec()))
    sent = mesh.leaderboard.registrations.qsize()
    for _ in range(5):
        await mesh.cycle()
    assert mesh.leaderboard.registrations.qsize() == sent


@pytest.mark.parametrize("refusal", [Unavailable("it starts"), Internal("a defect")])
async def test_a_tournament_is_created_although_the_leaderboard_fails_and_is_registered_later(
    mesh: Any, spec: Any, refusal: PodraceError
) -> None:
    mesh.leaderboard.register_refusal = refusal
    name = await mesh.create(spec())
    await mesh.cycle()
    assert mesh.leaderboard.registered == {}
    mesh.leaderboard.register_refusal = None
    await until_registered(mesh, name)
    assert set(mesh.leaderboard.registered) == {name}


async def test_a_leaderboard_of_an_earlier_version_is_asked_once(mesh: Any, spec: Any) -> None:
    mesh.leaderboard.register_refusal = Unimplemented("no such method")
    name = await mesh.create(spec())
    assert await next_registration(mesh.leaderboard) == [name]
    await mesh.cycle()
    await mesh.cycle()
    assert mesh.leaderboard.registrations.qsize() == 0


async def test_all_tournaments_are_registered_again_after_a_restart_also_those_that_have_ended(
    open_mesh: Any, spec: Any
) -> None:
    async with open_mesh() as mesh:
        names = {await mesh.create(spec()) for _ in range(2)}
        await mesh.cancel(min(names))
    async with open_mesh() as mesh:
        await until_registered(mesh, *names)
        assert set(mesh.leaderboard.registered) == names


async def test_a_leaderboard_whose_database_was_restored_learns_its_running_tournaments_again(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec())
    await until_registered(mesh, name)
    mesh.leaderboard.registered.clear()
    mesh.leaderboard.forgetful = True
    async with asyncio.timeout(SECONDS):
        while name not in mesh.leaderboard.registered:
            await mesh.cycle()


async def test_registrations_are_repeated_after_a_minute_also_of_ended_tournaments(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await until_registered(mesh, name)
    await mesh.cancel(name)
    mesh.leaderboard.registered.clear()
    mesh.clock.now += REPEAT_SECONDS
    await mesh.cycle()
    await until_registered(mesh, name)
    assert set(mesh.leaderboard.registered) == {name}


async def test_many_tournaments_are_registered_in_several_requests(mesh: Any, spec: Any) -> None:
    first = await mesh.create(spec())
    await next_registration(mesh.leaderboard)
    cache = mesh.runtime.cache
    for number in range(MOST_AT_ONCE + 1):
        cache.tournaments[f"race-{number:06}"] = cache.tournaments[first]
    mesh.runtime.registered.clear()
    client = LeaderboardClient(mesh.servicer._leaderboard_address, lambda *_: None)
    registration = Registration(mesh.runtime, client, mesh.clock)
    registration.register_missing()
    sizes = [len(await next_registration(mesh.leaderboard)) for _ in range(2)]
    assert sizes == [MOST_AT_ONCE, 2]
    await registration.close()
    await client.close()


class SlowlyDeletingLeaderboard(leaderboard_pb2_grpc.UpdaterServiceServicer):
    """Answers a deletion when the test allows it."""

    def __init__(self) -> None:
        self.deleting, self.allowed = asyncio.Event(), asyncio.Event()

    async def DeleteTournament(self, request: Any, context: Any) -> Any:
        self.deleting.set()
        await self.allowed.wait()
        return leaderboard_pb2.DeleteTournamentResponse()

    async def RegisterTournaments(self, request: Any, context: Any) -> Any:
        return leaderboard_pb2.RegisterTournamentsResponse()


async def test_what_is_registered_is_read_only_after_a_deletion_under_way() -> None:
    """Otherwise a tournament that is deleted meanwhile would be registered again, and never be deleted."""
    board = SlowlyDeletingLeaderboard()
    service = rpc.Service(
        leaderboard_pb2.DESCRIPTOR.services_by_name["UpdaterService"],
        leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server,
        board,
    )
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [service], guard=Guard.of_anyone())
    client = LeaderboardClient(server.address, lambda *_: None)
    known = {"race-aaaaaa": Ownership(local_user().name)}
    deleting = asyncio.ensure_future(client.delete_tournament("race-aaaaaa"))
    await asyncio.wait_for(board.deleting.wait(), SECONDS)
    registering = asyncio.ensure_future(client.register_tournaments(lambda: dict(known)))
    await asyncio.sleep(0)
    known.clear()
    board.allowed.set()
    await deleting
    assert list(await registering) == []
    await client.close()
    await server.drain()
