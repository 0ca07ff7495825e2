"""Sends what is recorded about a tournament to the leaderboard, which archives it before it is deleted."""

import asyncio

from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.messages import evaluation_entry, event_message, tournament_message
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase
from orchestrator.state.deletion_records import KeptRecords, kept_records
from orchestrator.state.runtime import RuntimeState
from podrace.backup.archives import json_lines, record
from podrace.tournament.v1.tournament_pb2 import Tournament


class Archiving:
    """Archives tournaments.

    await archiving.archive(tournament_id)
    """

    def __init__(
        self, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient, clock: Clock
    ) -> None:
        """Prepares to archive.

        Args:
            state: Database of the orchestrator.
            runtime: State in memory.
            leaderboard: Adds its own records, and writes the archive.
            clock: Wall time and monotonic time.
        """
        self._state, self._runtime, self._leaderboard, self._clock = state, runtime, leaderboard, clock

    async def archive(self, tournament_id: str) -> None:
        """Archives a tournament durably.

        Raises:
            PodraceError: The error of the leaderboard, or NotFound.
        """
        kept = await self._state.transact(kept_records, tournament_id)
        own = tournament_message(kept.tournament, self._runtime, self._clock.monotonic(), "")
        await self._leaderboard.archive_tournament(tournament_id, await asyncio.to_thread(records_of, own, kept))


def records_of(own: Tournament, kept: KeptRecords) -> bytes:
    """Returns the records of a tournament as compressed lines."""
    lines = [record("tournament", own)]
    lines += [record("evaluation", evaluation_entry(each)) for each in kept.evaluations]
    return json_lines([*lines, *(record("event", event_message(each)) for each in kept.events)])
