"""Records an event when the leaderboard has deleted checkpoints because of the quota of a tournament."""

from orchestrator.state.database import StateDatabase, Transaction
from podrace.printable import printable

KIND = "checkpoints_deleted"


class QuotaReports:
    """Records what was deleted, each time that the amount has grown.

    answers = await leaderboard.review(...)
    await quotas.record(name, answers[name].quota_report)
    """

    def __init__(self, state: StateDatabase) -> None:
        self._state = state
        self._recorded: dict[str, str] = {}

    async def record(self, tournament_id: str, report: str) -> None:
        """Records an event unless the report is empty or was recorded before.

        After a restart of the orchestrator the last report is recorded once more.
        """
        if report and report != self._recorded.get(tournament_id):
            await self._state.transact(record_report, tournament_id, printable(report))
            self._recorded[tournament_id] = report


def record_report(transaction: Transaction, tournament_id: str, report: str) -> None:
    """Records the event."""
    transaction.record_event(KIND, f"deleted since the leaderboard started: {report}", tournament_id=tournament_id)
