"""Lets another pod verify candidates that would lead (`evaluation.verify`); the leaderboard decides about the result.

The rules for a candidate that waits are in `decisions.verification`. A verification is an evaluation whose request id
names the candidate, so the database is the only record of it, and it survives a restart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.decisions.verification import TrainingPod, while_waiting
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EvaluationRecord, TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.transitions import end_evaluation
from orchestrator.tournaments import evaluations
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import ReviewAgentsResponse, Verification
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

END_SECONDS = 300.0
"""Longest time that the end of a tournament waits for verifications."""


@dataclass
class _Waiting:
    """The candidate of one tournament that is being verified."""

    candidate_id: str
    begin: float
    """Monotonic time at which it was seen first."""
    owners: list[str]
    """Pods that have trained its agent."""
    evaluation_id: str
    interrupted: bool = False
    """Whether a pod was asked to give its agent back for it."""
    reported: bool = False
    """Whether an event was recorded that no other pod is running."""


class Verifications:
    """Verifies held candidates, one at a time for each tournament.

    held = await verifications.advance(now, tournament, answer_of_review)  # in each reconcile cycle
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient) -> None:
        self._state, self._runtime, self._leaderboard = state, runtime, leaderboard
        self._waiting: dict[str, _Waiting] = {}

    async def advance(self, now: float, tournament: TournamentRecord, answer: ReviewAgentsResponse) -> bool:
        """Queues what the leaderboard wants, collects the result, and returns whether a candidate is held.

        Args:
            now: Monotonic time.
            tournament: A running or ending tournament.
            answer: What the leaderboard wants.
        """
        name, wanted = tournament.tournament_id, answer.verification
        if not answer.HasField("verification"):
            self._waiting.pop(name, None)
            return False
        waiting = self._waiting.get(name)
        if waiting is None or waiting.candidate_id != wanted.candidate.candidate_id:
            owners, evaluation_id = await self._state.transact(queue, tournament, wanted)
            waiting = self._waiting[name] = _Waiting(wanted.candidate.candidate_id, now, owners, evaluation_id)
            self._runtime.changes.notify_all()
            self._runtime.reconcile_requested.set()
        found = await self._state.transact(records.find, EvaluationRecord, waiting.evaluation_id)
        if found is not None and found.phase != WorkPhase.UNFINISHED:
            await self._record(name, wanted, found)
        elif waiting.evaluation_id not in self._runtime.leases.held:
            await self._wait(now, name, waiting, wanted)
        return True

    async def _record(self, name: str, wanted: Verification, found: EvaluationRecord) -> None:
        result, error, candidate = found.result, found.error, wanted.candidate
        fault = "" if result is None else result.evaluator_fault
        if fault:
            result, error = None, f"the evaluator plugin failed: {fault}"
        try:
            decided = await self._leaderboard.record_verification(name, candidate.candidate_id, result, error)
        except (DeadlineExceeded, ResourceExhausted, Unavailable):
            return  # repeated in the next reconcile cycle
        if not decided.refused:
            # A refusal is listed with those of other submissions.
            message = f"{candidate.agent_id} may lead: {decided.reason}"
            await self._state.transact(record_event, "candidate_verified", name, candidate.agent_id, message)

    async def _wait(self, now: float, name: str, waiting: _Waiting, wanted: Verification) -> None:
        leases, pods = self._runtime.leases, self._runtime.cache.pods.values()
        training = [
            TrainingPod(lease.pod_id, lease.work_id, lease.progress.score if lease.progress.HasField("score") else None)
            for lease in leases.held.values()
            if lease.tournament_id == name and lease.trains
        ]
        present = [pod.pod_id for pod in pods if pod.tournament_id == name and not pod.drain_reason]
        step = while_waiting(now - waiting.begin, waiting.owners, present, training)
        if step.interrupt and not waiting.interrupted:
            waiting.interrupted = True
            leases.request_yield(step.interrupt, f"{waiting.evaluation_id}, which verifies a candidate, is more urgent")
        if step.missing and not waiting.reported:
            waiting.reported = True
            agent_id = wanted.candidate.agent_id
            message = f"{agent_id} waits to be verified: {step.missing}"
            await self._state.transact(record_event, "verification_waits", name, agent_id, message)

    async def give_up(self, tournament_id: str) -> None:
        """Withdraws the verification of a tournament that has ended; its candidate stays off the board."""
        waiting = self._waiting.pop(tournament_id, None)
        if waiting:
            await self._state.transact(withdraw, waiting.evaluation_id)


def request_id_of(tournament_id: str, candidate_id: str) -> str:
    """Returns the request id of the verification of a candidate."""
    return f"{tournament_id}-verify-{candidate_id}"


def owners_of(transaction: Transaction, tournament: TournamentRecord, agent_ids: Iterable[str]) -> list[str]:
    """Returns the pods that must not play an evaluation of agents, because they have trained one of them.

    None if `evaluation.verify` is 0: scores are then accepted as pods state them.
    """
    if not tournament.spec.evaluation.verify:
        return []
    name = tournament.tournament_id
    return sorted({pod_id for one in agent_ids for pod_id in records.pods_of_agent(transaction, name, one)})


def queue(transaction: Transaction, tournament: TournamentRecord, wanted: Verification) -> tuple[list[str], str]:
    """Queues a verification once; returns the pods that must not play it, and the id of its evaluation."""
    name, candidate = tournament.tournament_id, wanted.candidate
    request_id = request_id_of(name, candidate.candidate_id)
    if known := records.evaluation_of_request(transaction, name, request_id):
        return list(known.request.excluded_pod_ids), known.evaluation_id
    owners = owners_of(transaction, tournament, [candidate.agent_id])
    evaluation = tournament.spec.evaluation
    request = pb.CreateEvaluationRequest(
        request_id=request_id,
        tournament_id=name,
        checkpoint=Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id),
        episodes=wanted.episodes,
        options=evaluation.options,
        seed=wanted.seed,
        stochastic=not evaluation.greedy,
        lanes=wanted.lanes,
        excluded_pod_ids=owners,
    )
    evaluation_id = evaluations.create_evaluation(transaction, request, allowed=None)
    message = (
        f"{candidate.agent_id} would lead with {candidate.score:.5g}; another pod than {', '.join(owners) or 'its own'}"
        f" plays {wanted.episodes} of its episodes first ({evaluation_id})"
    )
    record_event(transaction, "candidate_held", name, candidate.agent_id, message)
    return owners, evaluation_id


def withdraw(transaction: Transaction, evaluation_id: str) -> None:
    """Ends a verification that took too long; a pod that is playing it stops when it next renews its lease."""
    found = records.find(transaction, EvaluationRecord, evaluation_id)
    if found and found.phase == WorkPhase.UNFINISHED:
        error = "it was not done in time for the end of the tournament"
        end_evaluation(transaction, replace(found, phase=WorkPhase.FAILED, error=error))


def record_event(transaction: Transaction, kind: str, tournament_id: str, agent_id: str, message: str) -> None:
    """Records an event about a candidate of an agent."""
    transaction.record_event(kind, message, tournament_id=tournament_id, agent_id=agent_id)
