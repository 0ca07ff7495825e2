"""Executes the requests of users: creates, changes, cancels and resumes tournaments, and queues evaluations."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.decisions.update_summary import describe_changes
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import (
    CANCELLED,
    COMPLETED,
    END_STATES,
    ENDING,
    RUNNING,
    EvaluationRecord,
    EventRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
)
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.transitions import withdraw_target_checks
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from podrace.limits.config import NOTHING, Allowed
from podrace.limits.specification import check_options, check_specification
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.resolve import resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT_ENDED = "ERROR_REASON_TOURNAMENT_ENDED"
ID_CHARACTERS = 6
DEFAULT_PAGE_SIZE = 100
MAXIMUM_PAGE_SIZE = 1000
MAXIMUM_SEQUENCE = 1 << 62
"""Larger than every sequence number."""


@dataclass(frozen=True)
class TournamentView:
    """A tournament and its events, of the same moment, with its pods at that moment or shortly after."""

    tournament: TournamentRecord
    pods: list[PodRecord]
    events: list[EventRecord]


class Tournaments:
    """Requests of users."""

    def __init__(
        self,
        state: StateDatabase,
        runtime: RuntimeState,
        *,
        mesh_id: str,
        start_pods: bool,
        random_bytes: Callable[[int], bytes],
        allowed: Allowed = NOTHING,
    ) -> None:
        """Creates the service of one mesh.

        Args:
            state: Database of the orchestrator.
            runtime: State in memory, which is notified of changes.
            mesh_id: The mesh that new tournaments belong to.
            start_pods: Whether this orchestrator starts pods.
            random_bytes: Returns the given number of random bytes, for tournament ids.
            allowed: What specifications may name.
        """
        self._state, self._runtime, self._allowed = state, runtime, allowed
        self._mesh_id, self._start_pods, self._random_bytes = mesh_id, start_pods, random_bytes
        self._closing = False

    def close(self) -> None:
        """Rejects new tournaments and evaluations from here on."""
        self._closing = True

    async def create(self, request: pb.CreateTournamentRequest) -> TournamentRecord:
        """Stores a new tournament; the reconcile loop starts its pods.

        Raises:
            InvalidArgument: The specification is invalid, or names what the operator does not allow (BAD_SPEC).
            FailedPrecondition: This orchestrator starts no pods.
            Unavailable: The orchestrator is stopping.
        """
        self.check_accepting()
        spec = resolve(request.spec)
        check_specification(spec, self._allowed)

        def change(transaction: Transaction) -> TournamentRecord:
            return create(transaction, request, spec, self._mesh_id, self._random_bytes)

        return await self._change(change)

    async def update(self, request: pb.UpdateTournamentRequest) -> TournamentRecord:
        """Changes pool limits or the objective.

        Raises:
            InvalidArgument: The changed specification is invalid (BAD_SPEC).
            NotFound: There is no such tournament.
            FailedPrecondition: The tournament has ended (TOURNAMENT_ENDED).
        """
        return await self._change(lambda transaction: update(transaction, request))

    async def cancel(self, request: pb.CancelTournamentRequest) -> TournamentRecord:
        """Cancels a tournament; one that has ended, or is ending, stays unchanged.

        Raises:
            NotFound: There is no such tournament.
        """
        reason = request.reason or "cancelled"
        return await self._change(
            lambda transaction: _once(
                transaction, "CancelTournament", request, lambda tournament: cancel(transaction, tournament, reason)
            )
        )

    async def resume(self, request: pb.ResumeTournamentRequest) -> TournamentRecord:
        """Resumes a tournament.

        Raises:
            NotFound: There is no such tournament.
            InvalidArgument: Its specification names what the operator no longer allows (BAD_SPEC).
            FailedPrecondition: Its objective was met, or this orchestrator starts no pods.
            Unavailable: The orchestrator is stopping.
        """
        self.check_accepting()
        return await self._change(
            lambda transaction: _once(
                transaction,
                "ResumeTournament",
                request,
                lambda found: resume(transaction, found, self._mesh_id, self._allowed),
            )
        )

    async def create_evaluation(self, request: pb.CreateEvaluationRequest) -> str:
        """Queues an evaluation and returns its id.

        Raises:
            InvalidArgument: A checkpoint is incomplete, or an option is not allowed (BAD_SPEC).
            NotFound: There is no such tournament.
            FailedPrecondition: This orchestrator starts no pods.
            Unavailable: The orchestrator is stopping.
        """
        self.check_accepting()
        evaluation_id = await self._state.transact(create_evaluation, request, self._allowed)
        self._changed()
        return evaluation_id

    async def get(self, tournament_id: str) -> TournamentRecord:
        """Returns a tournament; raises NotFound."""
        return await self._state.transact(records.find_tournament, tournament_id)

    async def get_evaluation(self, evaluation_id: str) -> EvaluationRecord:
        """Returns an evaluation; raises NotFound."""
        found = await self._state.transact(records.find, EvaluationRecord, evaluation_id)
        if found is None:
            raise NotFound(f"evaluation_id {evaluation_id!r}: there is no such evaluation")
        return found

    async def page(self, page_size: int, page_token: str) -> list[TournamentRecord]:
        """Returns tournaments, newest first; raises InvalidArgument for a bad token."""
        before = token_number(page_token, "ListTournaments") or MAXIMUM_SEQUENCE
        return await self._state.transact(records.tournaments_before, before, page_limit(page_size))

    def pods(self, tournament_id: str) -> list[PodRecord]:
        """Returns the pods of a tournament, or all pods for an empty id, oldest first."""
        return [pod for pod in self._runtime.cache.pods.values() if tournament_id in ("", pod.tournament_id)]

    async def events(self, tournament_id: str, page_size: int, page_token: str) -> list[EventRecord]:
        """Returns events, oldest first; raises InvalidArgument for a bad token."""
        after = token_number(page_token, "ListEvents")
        return await self._state.transact(records.events_after, tournament_id, after, page_limit(page_size))

    async def evaluations(self, tournament_id: str, page_size: int, page_token: str) -> list[EvaluationRecord]:
        """Returns evaluations, oldest first; raises InvalidArgument for a bad token."""
        begin = token_number(page_token, "ListEvaluations")
        return await self._state.transact(records.evaluations_from, tournament_id, begin, page_limit(page_size))

    async def tournament_view(self, tournament_id: str, after: int) -> TournamentView:
        """Returns a tournament, its pods, and its events after a sequence number; raises NotFound."""
        tournament, events = await self._state.transact(tournament_view, tournament_id, min(after, MAXIMUM_SEQUENCE))
        return TournamentView(tournament, self.pods(tournament_id), events)

    async def _change(self, change: Callable[[Transaction], TournamentRecord]) -> TournamentRecord:
        tournament = await self._state.transact(change)
        self._changed()
        return tournament

    def _changed(self) -> None:
        self._runtime.reconcile_requested.set()
        self._runtime.changes.notify_all()

    def check_accepting(self) -> None:
        """Raises FailedPrecondition or Unavailable if nothing new can be created here."""
        if self._closing:
            raise Unavailable("the orchestrator is stopping")
        if not self._start_pods:
            raise FailedPrecondition(
                "this orchestrator starts no pods (start_pods = false) and cannot run anything new"
            )


# --- transactions ------------------------------------------------------------------------------------------------


def create(
    transaction: Transaction,
    request: pb.CreateTournamentRequest,
    spec: TournamentSpec,
    mesh_id: str,
    random_bytes: Callable[[int], bytes],
) -> TournamentRecord:
    """Stores a tournament once per request id."""

    def store() -> str:
        tournament = TournamentRecord(
            tournament_id=_new_id(transaction, spec.name, random_bytes),
            sequence=records.next_tournament_sequence(transaction),
            spec=spec,
            state=RUNNING,
            reason="created",
            create_time=transaction.now,
            end_time=None,
            running_seconds=0.0,
            next_agent=0,
            next_pod=0,
            next_evaluation=0,
            mesh_id=mesh_id,
            agents_failed_in_row=0,
            pods_died_in_row=0,
            best=None,
        )
        records.save(transaction, tournament)
        transaction.record_event(
            "tournament_created", f"{spec.environment.id} with seed {spec.seed}", tournament_id=tournament.tournament_id
        )
        return tournament.tournament_id

    tournament_id = transaction.run_once("CreateTournament", request.request_id, request, store)
    return records.find_tournament(transaction, tournament_id)


def _new_id(transaction: Transaction, name: str, random_bytes: Callable[[int], bytes]) -> str:
    while True:
        suffix = base64.b32encode(random_bytes(ID_CHARACTERS)).decode().lower()[:ID_CHARACTERS]
        tournament_id = f"{name}-{suffix}"
        if records.find(transaction, TournamentRecord, tournament_id) is None:
            return tournament_id


def update(transaction: Transaction, request: pb.UpdateTournamentRequest) -> TournamentRecord:
    """Changes pool limits or the objective once per request id."""

    def change(tournament: TournamentRecord) -> None:
        if tournament.state != RUNNING:
            raise FailedPrecondition(
                f"tournament {tournament.tournament_id} has ended ({tournament.reason}) and cannot be changed",
                reason=TOURNAMENT_ENDED,
            )
        spec = TournamentSpec()
        spec.CopyFrom(tournament.spec)
        spec.pool.MergeFrom(request.pool)
        spec.objective.MergeFrom(request.objective)
        spec = resolve(spec)
        if spec.synchronous and spec.pool.maximum_pods != tournament.spec.pool.maximum_pods:
            raise InvalidArgument(
                "pool.maximum_pods: is the size of a round of this synchronous tournament and cannot be changed"
            )
        records.save(transaction, replace(tournament, spec=spec))
        changes = describe_changes(tournament.spec, spec)
        transaction.record_event("tournament_updated", changes, tournament_id=tournament.tournament_id)

    return _once(transaction, "UpdateTournament", request, change)


def cancel(transaction: Transaction, tournament: TournamentRecord, reason: str) -> None:
    """Cancels a tournament if it is running."""
    if tournament.state == RUNNING:
        records.save(transaction, replace(tournament, state=CANCELLED, reason=reason, end_time=transaction.now))
        transaction.record_event("tournament_cancelled", reason, tournament_id=tournament.tournament_id)
        withdraw_target_checks(transaction, tournament.tournament_id)


def cancel_running(transaction: Transaction, reason: str, *, but_mesh_id: str | None = None) -> None:
    """Cancels every running tournament, except those of one mesh."""
    for tournament in records.running_tournaments(transaction):
        if tournament.mesh_id != but_mesh_id:
            cancel(transaction, tournament, reason)


def resume(transaction: Transaction, tournament: TournamentRecord, mesh_id: str, allowed: Allowed = NOTHING) -> None:
    """Resumes a tournament that was cancelled or has failed, and resets its failure counts."""
    check_specification(tournament.spec, allowed)
    if tournament.state in (ENDING, COMPLETED):
        raise FailedPrecondition(
            f"tournament {tournament.tournament_id} has met its objective ({tournament.reason}); create a new one"
        )
    if tournament.state == RUNNING:
        return
    resumed = replace(
        tournament,
        state=RUNNING,
        reason="resumed",
        end_time=None,
        mesh_id=mesh_id,
        agents_failed_in_row=0,
        pods_died_in_row=0,
    )
    records.save(transaction, resumed)
    transaction.record_event(
        "tournament_resumed", f"it had ended with: {tournament.reason}", tournament_id=tournament.tournament_id
    )


def create_evaluation(transaction: Transaction, request: pb.CreateEvaluationRequest, allowed: Allowed = NOTHING) -> str:
    """Queues an evaluation once per request id."""
    checkpoint = request.checkpoint
    if any(not named.agent_id or not named.manifest_digest for named in (checkpoint, *request.members)):
        raise InvalidArgument("CreateEvaluation: agent_id and manifest_digest of every checkpoint must be set")

    def store() -> str:
        tournament = records.find_tournament(transaction, request.tournament_id)
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

    return transaction.run_once("CreateEvaluation", request.request_id, request, store)


def tournament_view(
    transaction: Transaction, tournament_id: str, after: int
) -> tuple[TournamentRecord, list[EventRecord]]:
    """Reads a tournament and its events after a sequence number."""
    return (
        records.find_tournament(transaction, tournament_id),
        records.events_after(transaction, tournament_id, after, MAXIMUM_PAGE_SIZE),
    )


def has_ended(view: TournamentView) -> bool:
    """Whether the tournament has ended and this view includes its last event."""
    return view.tournament.state in END_STATES and len(view.events) < MAXIMUM_PAGE_SIZE


def page_limit(page_size: int) -> int:
    """Number of records on a page."""
    return min(page_size or DEFAULT_PAGE_SIZE, MAXIMUM_PAGE_SIZE)


def token_number(page_token: str, method: str) -> int:
    """Position where a page starts; 0 for the first.

    Raises:
        InvalidArgument: The list did not return this token.
    """
    if page_token and (not page_token.isdecimal() or int(page_token) > MAXIMUM_SEQUENCE):
        raise InvalidArgument(f"{method}: page_token {page_token!r} is invalid; use a next_page_token of this list")
    return int(page_token or 0)


_Change = pb.UpdateTournamentRequest | pb.CancelTournamentRequest | pb.ResumeTournamentRequest


def _once(
    transaction: Transaction, method: str, request: _Change, change: Callable[[TournamentRecord], None]
) -> TournamentRecord:
    """Changes a tournament once per request id, and returns it as it is after the change."""

    def act() -> str:
        change(records.find_tournament(transaction, request.tournament_id))
        return request.tournament_id

    return records.find_tournament(transaction, transaction.run_once(method, request.request_id, request, act))
