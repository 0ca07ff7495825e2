"""Records an event for every submission that the leaderboard refused because of what its checkpoint contains.

A pod that submits invented checkpoints does not report their refusal, so the leaderboard lists its refusals.
"""

from collections.abc import Sequence

from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import AgentRecord
from podrace.leaderboard.v1.leaderboard_pb2 import Refusal

KIND = "submission_refused"
LONGEST_MESSAGE = 500
"""Characters of a message in an event: a manifest may contain texts of any length."""


class RefusedSubmissions:
    """Records refused submissions, each once.

    answers = await leaderboard.review({name: await refused.last_number(name) for name in running})
    await refused.record(name, answers[name].refusals)
    """

    def __init__(self, state: StateDatabase) -> None:
        self._state = state
        self._last: dict[str, int] = {}

    async def last_number(self, tournament_id: str) -> int:
        """Returns the number of the last refusal of a tournament that was recorded."""
        if tournament_id not in self._last:
            self._last[tournament_id] = await self._state.transact(count_events, tournament_id)
        return self._last[tournament_id]

    async def record(self, tournament_id: str, refusals: Sequence[Refusal]) -> None:
        """Records the refusals that were not recorded before."""
        new = [one for one in refusals if one.number > self._last.get(tournament_id, 0)]
        if new:
            await self._state.transact(record_refusals, tournament_id, new)
            self._last[tournament_id] = new[-1].number


def count_events(transaction: Transaction, tournament_id: str) -> int:
    """Returns how many refusals were recorded; they are numbered from 1 without gaps."""
    return records.count_events(transaction, tournament_id, KIND)


def record_refusals(transaction: Transaction, tournament_id: str, refusals: Sequence[Refusal]) -> None:
    """Records an event for each refusal, with the pod that holds the agent under the lease epoch of the submission."""
    for refusal in refusals:
        agent = records.find(transaction, AgentRecord, refusal.agent_id)
        holds = agent is not None and agent.lease_epoch == refusal.lease_epoch
        reason = refusal.error_reason.removeprefix("ERROR_REASON_")
        transaction.record_event(
            KIND,
            f"checkpoint {refusal.manifest_digest[:12]} of {refusal.agent_id} was refused ({reason}):"
            f" {refusal.message[:LONGEST_MESSAGE]}",
            tournament_id=tournament_id,
            pod_id=agent.pod_id if agent and holds else "",
            agent_id=refusal.agent_id,
        )
