"""Rebuilds an empty database from what the leaderboard knows, before the service answers calls."""

import asyncio
from collections.abc import Sequence

import structlog

from orchestrator.leaderboard_client import KnownAgent, LeaderboardClient
from orchestrator.rebuilding.derivation import DerivedRecords, derived_records, epoch_of_restoration
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.saved_state import has_tournaments, raise_restored_epoch
from podrace.access.authenticators.unix_socket import user_name
from podrace.errors import DeadlineExceeded, Unavailable, Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import KnownTournament

ATTEMPTS, RETRY_SECONDS = 60, 1.0
"""The leaderboard may start at the same time, and rebuild its database first."""
_log = structlog.get_logger(__name__)


async def rebuild(state: StateDatabase, leaderboard: LeaderboardClient, mesh_id: str) -> int:
    """Records what the leaderboard knows, if the database has no tournament; returns the number of tournaments.

    All is one transaction, so a database is rebuilt completely or not at all.

    Raises:
        Unavailable, DeadlineExceeded: The leaderboard does not answer.
    """
    if await state.transact(has_tournaments):
        return 0
    found, highest = await _known(leaderboard)
    if not found:
        return 0
    agents = [await leaderboard.list_agents(known.tournament_id) for known in found]
    return await state.transact(record_all, found, agents, highest, mesh_id)


async def _known(leaderboard: LeaderboardClient) -> tuple[list[KnownTournament], int]:
    for attempt in range(ATTEMPTS):
        try:
            return await leaderboard.list_known_tournaments()
        except Unimplemented:
            _log.warning("the leaderboard cannot list its tournaments; nothing is rebuilt")
            return [], 0
        except (Unavailable, DeadlineExceeded) as error:
            if attempt == ATTEMPTS - 1:
                raise
            _log.info("waits for the leaderboard, to rebuild an empty database", error=error.message)
            await asyncio.sleep(RETRY_SECONDS)
    return [], 0


def record_all(
    transaction: Transaction,
    found: Sequence[KnownTournament],
    agents: Sequence[Sequence[KnownAgent]],
    highest_lease_epoch: int,
    mesh_id: str,
) -> int:
    """Records tournaments with their agents; returns how many."""
    owner = user_name()
    for sequence, (known, own) in enumerate(zip(found, agents, strict=True), start=1):
        _record(transaction, derived_records(known, own, sequence, mesh_id, owner, transaction.now))
    # As after a restoration: pods report leases that the database does not know, and no epoch is given twice.
    raise_restored_epoch(transaction, epoch_of_restoration(highest_lease_epoch))
    return len(found)


def _record(transaction: Transaction, derived: DerivedRecords) -> None:
    tournament = derived.tournament
    records.save(transaction, tournament)
    records.save(transaction, derived.ownership)
    for agent in derived.agents:
        records.save(transaction, agent)
    transaction.record_event(
        "tournament_rebuilt",
        f"{tournament.tournament_id} is rebuilt from the leaderboard, without a backup: {len(derived.agents)} agents,"
        f" {sum(agent.environment_steps for agent in derived.agents)} environment steps; lost are events, evaluations,"
        " labels, pauses, changes of pool and objective, and which agents had failed or were stopped",
        tournament_id=tournament.tournament_id,
    )
