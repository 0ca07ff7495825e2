"""Queues evaluations, waits for them and cancels them: an evaluation takes as long as its episodes."""

from dataclasses import replace

from orchestrator.state import records
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EvaluationRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.transitions import end_evaluation
from podrace.errors import InvalidArgument, NotFound
from podrace.limits.config import NOTHING, Allowed
from podrace.limits.specification import check_options
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tasks import wait_at_most

LONGEST_WAIT_SECONDS = 30.0


class Evaluations:
    """Evaluations that were queued.

    evaluation = await evaluations.wait(evaluation_id, 30.0)
    evaluation = await evaluations.cancel(request, key)
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, clock: Clock) -> None:
        """Gives access to the evaluations of one orchestrator.

        Args:
            state: Its database.
            runtime: Its state in memory, which notifies of changes.
            clock: Measures how long a call waits.
        """
        self._state, self._runtime, self._clock = state, runtime, clock
        self._closing = False

    def close(self) -> None:
        """Ends waiting calls."""
        self._closing = True
        self._runtime.changes.notify_all()

    async def wait(self, evaluation_id: str, seconds: float) -> EvaluationRecord:
        """Returns an evaluation as soon as it has finished, or as it is after this time.

        Args:
            evaluation_id: The evaluation.
            seconds: How long to wait; at most LONGEST_WAIT_SECONDS count.

        Raises:
            NotFound: There is no such evaluation.
        """
        deadline = self._clock.monotonic() + min(seconds, LONGEST_WAIT_SECONDS)
        while True:
            change = self._runtime.changes.next_change()
            found = await self._state.transact(find_evaluation, evaluation_id)
            remaining = deadline - self._clock.monotonic()
            if found.phase != WorkPhase.UNFINISHED or remaining <= 0 or self._closing:
                return found
            await wait_at_most(change.wait(), remaining)

    async def cancel(self, request: pb.CancelEvaluationRequest, key: str) -> EvaluationRecord:
        """Ends an evaluation without a result; one that has finished stays as it is.

        Args:
            request: The request.
            key: What its id belongs to.

        Raises:
            NotFound: There is no such evaluation.
        """
        found = await self._state.transact(cancel_evaluation, request, key)
        self._runtime.changes.notify_all()
        return found


def create_evaluation(
    transaction: Transaction,
    request: pb.CreateEvaluationRequest,
    allowed: Allowed | None = NOTHING,
    key: str = "CreateEvaluation",
) -> str:
    """Queues an evaluation once per key and request id.

    Args:
        transaction: A transaction.
        request: The request.
        allowed: Names that its options may have; None if the options are those of the tournament's specification, which
            were checked when it was created.
        key: What the request id belongs to.

    Raises:
        InvalidArgument: A checkpoint is incomplete, or an option is not allowed (BAD_SPEC).
        NotFound: There is no such tournament.
    """
    checkpoint = request.checkpoint
    if any(
        not named.agent_id or not named.manifest_digest for named in (checkpoint, *request.members, *request.opponents)
    ):
        raise InvalidArgument("CreateEvaluation: agent_id and manifest_digest of every checkpoint must be set")

    def store() -> str:
        tournament = records.find_tournament(transaction, request.tournament_id)
        if allowed is not None:
            check_options(tournament.spec, request.options, allowed, "options")
        number = tournament.next_evaluation
        queued = pb.CreateEvaluationRequest()
        queued.CopyFrom(request)
        queued.episodes = request.episodes or tournament.spec.evaluation.episodes
        evaluation = EvaluationRecord(
            evaluation_id=f"{tournament.tournament_id}-e{number}",
            tournament_id=tournament.tournament_id,
            number=number,
            phase=WorkPhase.UNFINISHED,
            lease_epoch=0,
            pod_id="",
            incarnation="",
            request=queued,
            result=None,
            error="",
        )
        records.save(transaction, evaluation)
        records.save(transaction, replace(tournament, next_evaluation=number + 1))
        message = f"{evaluation.evaluation_id} of {checkpoint.agent_id} over {queued.episodes} episodes"
        transaction.record_event("evaluation_created", message, tournament_id=tournament.tournament_id)
        return evaluation.evaluation_id

    return transaction.run_once(key, request.request_id, request, store)


def find_evaluation(transaction: Transaction, evaluation_id: str) -> EvaluationRecord:
    """Reads an evaluation; raises NotFound."""
    found = records.find(transaction, EvaluationRecord, evaluation_id)
    if found is None:
        raise NotFound(f"evaluation_id {evaluation_id!r}: there is no such evaluation")
    return found


def cancel_evaluation(transaction: Transaction, request: pb.CancelEvaluationRequest, key: str) -> EvaluationRecord:
    """Cancels an evaluation once per key and request id."""

    def act() -> str:
        found = find_evaluation(transaction, request.evaluation_id)
        if found.phase == WorkPhase.UNFINISHED:
            reason = f": {request.reason}" if request.reason else ""
            end_evaluation(transaction, replace(found, phase=WorkPhase.FAILED, error=f"cancelled{reason}"))
        return found.evaluation_id

    return find_evaluation(transaction, transaction.run_once(key, request.request_id, request, act))
