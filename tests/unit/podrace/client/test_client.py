import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from podrace.client import Client, reconnect
from podrace.client.calls import leaderboard
from podrace.errors import NotFound, PodraceError, ResourceExhausted, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED, TournamentSpec

Result = TypeVar("Result")


def call(mesh: Any, use: Callable[[Client], Awaitable[Result]]) -> Result:
    """Runs `use` with a client of the mesh."""

    async def connected() -> Result:
        async with Client(mesh.address) as client, asyncio.timeout(30):
            return await use(client)

    return asyncio.run(connected())


def test_a_created_tournament_is_followed_to_its_end_and_has_a_board_and_a_champion(mesh: Any, canned: Any) -> None:
    async def use(client: Client) -> tuple[list[int], list[str], str]:
        tournament = await client.create_tournament(TournamentSpec(name="cartpole"))
        states = [update.tournament.state async for update in client.follow(tournament)]
        board = await client.list_board(tournament)
        champion = await client.get_champion(tournament)
        return states, [candidate.agent_id for candidate in board], champion.manifest_digest

    states, board, champion = call(mesh, use)
    assert states[-1] == TOURNAMENT_STATE_COMPLETED
    assert board == ["cartpole-abc123-a2", "cartpole-abc123-a1", "cartpole-abc123-a0"]
    assert champion == canned.DIGEST


def test_following_resumes_after_the_last_event_when_the_connection_breaks(
    mesh: Any, known: Any, canned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "RETRY_SECONDS", 0.01)
    known.tournaments[:] = [canned.tournament("cartpole-abc123", "RUNNING")]
    known.breaks = 2

    async def use(client: Client) -> None:
        async for _ in client.follow(known.tournaments[0]):
            pass

    call(mesh, use)
    tokens = [request.resume_token for request in known.asked(pb.WatchTournamentRequest)]
    assert tokens == [0, 1, 1]


def test_a_tournament_that_the_leaderboard_does_not_know_yet_is_followed_once_it_does(
    mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaderboard was down when the tournament was created."""
    monkeypatch.setattr(reconnect, "RETRY_SECONDS", 0.01)
    known.unregistered = {"cartpole-abc123"}

    async def use(client: Client) -> int:
        tournament = await client.get_tournament("cartpole-abc123")
        return (await anext(client.follow_submissions(tournament))).resume_token

    assert call(mesh, use) == known.submissions[0].sequence


READS: list[Callable[[Client], Callable[..., Awaitable[Any]]]] = [
    lambda client: client.list_board,
    lambda client: client.list_snapshots,
    lambda client: client.list_agents,
    lambda client: client.get_all_statistics,
    lambda client: client.replay_tournament,
]


@pytest.mark.parametrize("read", READS)
def test_every_read_of_a_tournament_that_the_leaderboard_does_not_know_yet_is_repeated(
    mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch, read: Callable[[Client], Callable[..., Awaitable[Any]]]
) -> None:
    monkeypatch.setattr(reconnect, "RETRY_SECONDS", 0.01)

    async def use(client: Client) -> Any:
        tournament = await client.get_tournament("cartpole-abc123")
        expected = await read(client)(tournament)
        known.unregistered = {"cartpole-abc123"}
        return expected, await read(client)(tournament), known.unregistered

    expected, found, unregistered = call(mesh, use)
    assert found == expected
    assert not unregistered, "the first request was refused"


@pytest.mark.parametrize(("deleted", "expected"), [(False, Unavailable), (True, NotFound)])
def test_a_board_is_unavailable_until_the_leaderboard_knows_it_and_not_found_after_its_deletion(
    mesh: Any, known: Any, deleted: bool, expected: type[PodraceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderboard, "REGISTRATION_SECONDS", 0.0)

    async def use(client: Client) -> None:
        tournament = await client.get_tournament("cartpole-abc123")
        known.unregistered = {"cartpole-abc123"}
        if deleted:
            known.tournaments.clear()
        with pytest.raises(expected, match="cartpole-abc123"):
            await client.list_board(tournament)

    call(mesh, use)


def test_a_tournament_without_candidates_has_no_champion(mesh: Any, known: Any) -> None:
    known.tournaments[0].champion_manifest_digest = ""
    with pytest.raises(NotFound, match="cartpole-abc123 has no candidate yet"):
        call(mesh, lambda client: client.get_champion(known.tournaments[0]))


def test_a_page_above_the_message_limit_is_requested_again_with_half_as_many_entries(
    mesh: Any, known: Any, canned: Any
) -> None:
    known.largest_page = 1000
    known.tournaments[:] = [canned.tournament(f"t{number}") for number in range(60)]
    for tournament in known.tournaments:
        tournament.reason = "x" * 200_000
    listed = call(mesh, lambda client: client.list_tournaments())
    assert [tournament.tournament_id for tournament in listed] == [f"t{number}" for number in range(60)]
    assert known.page_sizes == [64, 32, 16, 16, 16, 16]


def test_one_entry_above_the_message_limit_is_an_error(mesh: Any, known: Any) -> None:
    known.largest_page = 1000
    known.tournaments[0].reason = "x" * 5_000_000
    with pytest.raises(ResourceExhausted):
        call(mesh, lambda client: client.list_tournaments())
    assert known.page_sizes == [64, 32, 16, 8, 4, 2, 1]
