"""Records leases that running pods hold and that a database restored from a backup does not contain."""

import re
from dataclasses import dataclass, replace

from orchestrator.assignments.transactions import new_agent
from orchestrator.decisions import restoration
from orchestrator.pool.pod_lifecycle import adopt_pod
from orchestrator.rebuilding.revival import revived
from orchestrator.state import records
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import (
    RUNNING,
    AgentRecord,
    EvaluationRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import restored_epoch
from podrace.errors import Unavailable

AGENT = re.compile(r"(.+)-a(\d{1,9})")
MOST_NEW_AGENTS = 100_000
"""Largest number of agents that one report may create; limits the damage that a faulty pod can do."""


@dataclass(frozen=True)
class ReportedLease:
    """What a pod reports about its lease, whose token has been checked."""

    work_id: str
    lease_epoch: int
    pod_id: str
    external: bool
    """Whether pods start by themselves here (launcher `external`)."""


class Adoption:
    """Handles calls of pods that the database does not know.

    await adoption.adopt_if_newer(work_id, lease_epoch, pod_id)
    if adoption.is_unmanaged(work_id, pod_id): ...
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, clock: Clock, *, external: bool) -> None:
        """Creates it; `external`: whether pods start by themselves here (launcher `external`)."""
        self._state, self._runtime, self._clock, self._external = state, runtime, clock, external

    async def adopt_if_newer(self, work_id: str, lease_epoch: int, pod_id: str) -> None:
        """Records a lease that was granted after the backup from which the database was restored."""
        known = self._runtime.cache.works.get(work_id)
        if not self._runtime.restored_epoch or not pod_id or (known and known.lease_epoch >= lease_epoch):
            return
        reported = ReportedLease(work_id, lease_epoch, pod_id, self._external)
        if adopted := await self._state.transact(adopt_lease, reported):
            self._runtime.grant_lease(adopted, self._clock.monotonic())
            self._runtime.changes.notify_all()

    def is_unmanaged(self, work_id: str, pod_id: str) -> bool:
        """Whether a pod may continue although the database does not know its tournament: its launcher lists it.

        Raises:
            Unavailable: The launcher has not listed the pods yet.
        """
        if not pod_id or work_id.rpartition("-")[0] in self._runtime.cache.tournaments:
            return False
        if self._runtime.unmanaged is None:
            raise Unavailable("the orchestrator has just started and does not know its pods yet; repeat the call")
        return pod_id in self._runtime.unmanaged


# --- transactions ------------------------------------------------------------------------------------------------


def adopt_lease(transaction: Transaction, reported: ReportedLease) -> WorkRecord | None:
    """Records that a pod holds work, if it got the lease between the backup and the restoration.

    An agent that was created since the backup is created again, with all agents of lower numbers. They get their
    hyperparameters from the leaderboard, which remembers each agent it has generated.

    Returns:
        The work as it is now; None if nothing was recorded.
    """
    known = _find(transaction, reported.work_id)
    if not restoration.keeps_lease(
        known.lease_epoch if known else 0, reported.lease_epoch, restored_epoch(transaction)
    ):
        return None
    tournament = records.find(transaction, TournamentRecord, reported.work_id.rpartition("-")[0])
    if tournament:
        revived(transaction, tournament, reported.pod_id)
    if known is None:
        known = _create_agent(transaction, reported.work_id)
    if known is None or known.phase != WorkPhase.UNFINISHED:
        return None
    adopted = replace(known, lease_epoch=reported.lease_epoch, pod_id=reported.pod_id, incarnation="")
    _ensure_pod(transaction, reported, adopted.tournament_id)
    records.save(transaction, adopted)
    transaction.record_event(
        "lease_adopted",
        f"{adopted.work_id} stays with {reported.pod_id} under lease epoch {reported.lease_epoch}, which was granted"
        " after the backup",
        tournament_id=adopted.tournament_id,
        pod_id=reported.pod_id,
        agent_id=adopted.work_id if isinstance(adopted, AgentRecord) else "",
    )
    return adopted


def _find(transaction: Transaction, work_id: str) -> WorkRecord | None:
    return records.find(transaction, AgentRecord, work_id) or records.find(transaction, EvaluationRecord, work_id)


def _create_agent(transaction: Transaction, agent_id: str) -> AgentRecord | None:
    """Creates the agents of a running tournament from its next number to that of this agent, and returns this one."""
    match = AGENT.fullmatch(agent_id)
    tournament = records.find(transaction, TournamentRecord, match[1]) if match else None
    if match is None or tournament is None or tournament.state != RUNNING:
        return None
    size = tournament.round_size
    numbers = range(tournament.next_agent, (int(match[2]) // size + 1) * size)
    if len(numbers) > MOST_NEW_AGENTS or int(match[2]) not in numbers:
        return None
    for number in numbers:
        records.save(transaction, new_agent(tournament.tournament_id, number))
    records.save(transaction, replace(tournament, next_agent=numbers.stop))
    return records.find(transaction, AgentRecord, agent_id)


def _ensure_pod(transaction: Transaction, reported: ReportedLease, tournament_id: str) -> None:
    """Records a pod that the database does not know as running."""
    if records.find(transaction, PodRecord, reported.pod_id) is None:
        tournament = records.find_tournament(transaction, tournament_id)
        adopt_pod(transaction, reported.pod_id, tournament, external=reported.external)
