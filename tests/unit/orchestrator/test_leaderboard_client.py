"""An orchestrator that does not lead any more asks the leaderboard for no change."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.records import RUNNING, AgentRecord, TournamentRecord, WorkPhase
from podrace.access.ownership import Ownership
from podrace.errors import Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

OWNER = Ownership("ada", "")


@pytest.fixture
async def client() -> AsyncIterator[LeaderboardClient]:
    def refuse() -> None:
        raise Unavailable("another replica leads")

    opened = LeaderboardClient("unix:/nowhere/leaderboard.sock", lambda *_: None, check_leads=refuse)
    yield opened
    await opened.close()


def _generate(client: LeaderboardClient, tournament: TournamentRecord, agent: AgentRecord) -> Awaitable[Any]:
    return client.generate(tournament, agent, [], [], ownership=OWNER, running_seconds=0.0, environment_steps=0)


CHANGES: dict[str, Callable[[LeaderboardClient, Any, Any], Awaitable[Any]]] = {
    "generate": _generate,
    "register_agent": lambda client, tournament, agent: client.register_agent(tournament, Agent(), OWNER),
    "register_tournaments": lambda client, tournament, agent: client.register_tournaments(lambda: {"race": OWNER}),
    "name_champion": lambda client, tournament, agent: client.name_champion("race", []),
    "record_verification": lambda client, tournament, agent: client.record_verification("race", "c", None, "no"),
    "archive_tournament": lambda client, tournament, agent: client.archive_tournament("race", b"records"),
    "delete_tournament": lambda client, tournament, agent: client.delete_tournament("race"),
    "snapshot_champion": lambda client, tournament, agent: client.snapshot_champion("race", 1, 0.0, 0),
    "back_up": lambda client, tournament, agent: client.back_up(),
}
READS = {"refresh", "list_board", "list_known_tournaments", "list_agents", "review", "close"}


def test_every_call_is_a_change_or_reads() -> None:
    public = {name for name, each in vars(LeaderboardClient).items() if callable(each) and not name.startswith("_")}
    assert public == CHANGES.keys() | READS


@pytest.mark.parametrize("change", CHANGES)
async def test_an_old_leader_asks_for_no_change(client: LeaderboardClient, change: str) -> None:
    tournament = TournamentRecord("race", 1, TournamentSpec(), RUNNING, "", 0.0, None, 0.0, 0, 0, 0, "", 0, 0, None)
    agent = AgentRecord("race-a0", "race", 0, WorkPhase.UNFINISHED, 1, "race-p0", "run", 0, None)
    with pytest.raises(Unavailable, match="another replica leads"):
        await CHANGES[change](client, tournament, agent)
