"""Checks candidates that reached `target_return` on new episodes; these evaluations are queued like any other.

The rules are in `decisions.target`. A check is an evaluation whose request id marks it, so the database is the only
record of the checks, and they survive a restart.
"""

from dataclasses import dataclass, field

from orchestrator.decisions import target
from orchestrator.decisions.target import CheckState, TargetCheck
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EvaluationRecord, TournamentRecord
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.target_records import evaluation_ids_of_checks, read_checks, request_id_of
from orchestrator.tournaments import evaluations
from orchestrator.tournaments.verifications import owners_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import DeadlineExceeded, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.seeding import purpose_seed

WAIT_SECONDS = 3.0
"""After this time without a free pod, a pod gives its agent back, plays the check and then resumes the agent."""


@dataclass(frozen=True)
class TargetVerdict:
    """The result of the checks of a tournament."""

    confirmed: TargetCheck | None = None
    """The check that reached the target."""
    open: bool = False
    """Whether the answer may still change without another score on the board."""


@dataclass
class _Checks:
    """The checks of one tournament."""

    evaluation_ids: list[str]
    """By number."""
    known: list[TargetCheck] = field(default_factory=list)
    """As of the last reconcile cycle."""
    queued_at: float = 0.0
    """Monotonic time at which the last check was seen first."""
    freed: bool = False
    """Whether a pod was asked to give its agent back for the last check."""


class TargetChecks:
    """Checks candidates against the target return of their tournament.

    verdict = await target_checks.advance(now, tournament, rounds_done)  # in each reconcile cycle
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, leaderboard: LeaderboardClient) -> None:
        self._state, self._runtime, self._leaderboard = state, runtime, leaderboard
        self._checks: dict[str, _Checks] = {}

    async def advance(self, now: float, tournament: TournamentRecord, rounds_done: int) -> TargetVerdict:
        """Collects the results of checks and queues the next one if a candidate has reached the target.

        Args:
            now: Monotonic time.
            tournament: A running tournament; a synchronous one must be between two rounds.
            rounds_done: Number of complete rounds of a synchronous tournament.
        """
        name, objective = tournament.tournament_id, tournament.spec.objective
        best = self._runtime.best.by_tournament.get(name)
        if not objective.HasField("target_return") or best is None:
            return TargetVerdict()
        checks = await self._read(now, name)
        if found := target.confirmed(checks.known, objective.target_return):
            return TargetVerdict(confirmed=found)
        if waiting := target.pending(checks.known):
            self._free_a_pod(now, tournament, checks, waiting)
            return TargetVerdict(open=True)
        if best.score < objective.target_return or not self._allowed(tournament, checks, rounds_done):
            return TargetVerdict()
        return await self._check_next(now, tournament, best, checks)

    async def _read(self, now: float, name: str) -> _Checks:
        """Returns the checks of a tournament with their current results."""
        checks = self._checks.get(name)
        if checks is None:
            ids = await self._state.transact(evaluation_ids_of_checks, name)
            checks = self._checks[name] = _Checks(ids, queued_at=now)
        settled = [check for check in checks.known if check.state is not CheckState.PENDING]
        if len(settled) < len(checks.evaluation_ids):
            checks.known = settled + await self._state.transact(read_checks, checks.evaluation_ids, len(settled))
        return checks

    def _allowed(self, tournament: TournamentRecord, checks: _Checks, rounds_done: int) -> bool:
        if tournament.spec.synchronous:
            return target.rounds_allow(checks.known, rounds_done)
        name = tournament.tournament_id
        pods = sum(pod.tournament_id == name for pod in self._runtime.cache.pods.values())
        pod_seconds = self._runtime.running_time.seconds(name) * max(1, pods)
        return target.affordable(checks.known, tournament.spec.evaluation.share, pod_seconds)

    async def _check_next(
        self, now: float, tournament: TournamentRecord, best: Candidate, checks: _Checks
    ) -> TargetVerdict:
        wanted = tournament.spec.objective.target_return
        candidate = target.next_candidate([best], checks.known, wanted)
        if candidate is None:
            try:
                board = await self._leaderboard.list_board(tournament.tournament_id)
            except (DeadlineExceeded, Unavailable):
                # A synchronous tournament waits, so that the result does not depend on when the leaderboard responds.
                return TargetVerdict(open=tournament.spec.synchronous)
            candidate = target.next_candidate(board, checks.known, wanted)
        if candidate is None:
            return TargetVerdict()
        evaluation_id = await self._state.transact(_queue, tournament, candidate, len(checks.evaluation_ids))
        checks.evaluation_ids.append(evaluation_id)
        checks.queued_at, checks.freed = now, False
        self._runtime.changes.notify_all()
        self._runtime.reconcile_requested.set()
        return TargetVerdict(open=True)

    def _free_a_pod(self, now: float, tournament: TournamentRecord, checks: _Checks, waiting: TargetCheck) -> None:
        """Lets a pod give its agent back if all pods have been busy with their agents for a while."""
        evaluation_id, leases = checks.evaluation_ids[waiting.number], self._runtime.leases
        if checks.freed or evaluation_id in leases.held or now - checks.queued_at < WAIT_SECONDS:
            return
        name, queued = tournament.tournament_id, self._runtime.cache.works.get(evaluation_id)
        owners = queued.request.excluded_pod_ids if isinstance(queued, EvaluationRecord) else ()
        training = [
            lease
            for lease in leases.held.values()
            if lease.tournament_id == name and lease.trains and lease.pod_id not in owners
        ]
        chosen = target.work_to_interrupt(
            (lease.work_id, lease.progress.score if lease.progress.HasField("score") else None) for lease in training
        )
        if chosen:
            checks.freed = True
            leases.request_yield(chosen, f"{evaluation_id}, which checks the target return, is more urgent")


def _queue(transaction: Transaction, tournament: TournamentRecord, candidate: Candidate, number: int) -> str:
    spec = tournament.spec
    request = pb.CreateEvaluationRequest(
        request_id=request_id_of(tournament.tournament_id, number),
        tournament_id=tournament.tournament_id,
        checkpoint=Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id),
        episodes=spec.evaluation.episodes,
        options=spec.evaluation.options,
        seed=purpose_seed(spec.seed, "target", number),
        stochastic=not spec.evaluation.greedy,
        excluded_pod_ids=owners_of(transaction, tournament, [candidate.agent_id]),
    )
    return evaluations.create_evaluation(transaction, request, allowed=None)
