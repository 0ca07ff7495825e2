"""Registers agents again at a leaderboard whose database was restored or rebuilt without them."""

import structlog

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.cache import StateCache
from orchestrator.state.records import TournamentRecord
from podrace.access.ownership import Ownership
from podrace.errors import PodraceError
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

_log = structlog.get_logger(__name__)


async def register_again(
    leaderboard: LeaderboardClient, cache: StateCache, tournament: TournamentRecord, agent: Agent
) -> None:
    """Registers a generated agent when it is assigned again; has no effect if the leaderboard knows it.

    A pod whose agent the leaderboard does not know gives it back, so the agent is assigned again. Training does not
    need the leaderboard, so an error is logged and not raised.
    """
    owner = cache.ownership_of(tournament.tournament_id) or Ownership("")
    try:
        await leaderboard.register_agent(tournament, agent, owner)
    except PodraceError as error:
        _log.warning("an agent could not be registered again", agent_id=agent.agent_id, error=error.message)
