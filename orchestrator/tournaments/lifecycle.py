"""Executes the requests of users: creates, changes, pauses, cancels and resumes tournaments, and queues evaluations."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.decisions import quotas
from orchestrator.decisions.quotas import NO_QUOTAS, Quotas
from orchestrator.decisions.update_summary import describe_changes
from orchestrator.state import pauses, records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.labels import labels_of, save_labels
from orchestrator.state.ownership_records import ownership_of, unended_tournaments
from orchestrator.state.records import (
    CANCELLED,
    COMPLETED,
    ENDING,
    RUNNING,
    OwnershipRecord,
    TournamentRecord,
)
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.transitions import withdraw_target_checks
from orchestrator.tournaments import evaluations
from orchestrator.tournaments.updates import changed_labels, changes_specification, check_etag, updated
from podrace.access.authenticators.unix_socket import local_user
from podrace.access.ownership import Ownership, Reach, ownership_for, reach
from podrace.access.principal import Principal
from podrace.access.v1 import access_pb2
from podrace.errors import FailedPrecondition, FieldViolation, InvalidArgument, NamedResource, NotFound, Unavailable
from podrace.limits.config import NOTHING, Allowed
from podrace.limits.specification import check_specification
from podrace.listing.labels import check_labels
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.printable import printable
from podrace.specification.ancestor import KEY, tournament_of
from podrace.specification.messages import bad_spec
from podrace.specification.resolve import resolve
from podrace.tournament.v1.tournament_pb2 import PodSpec, TournamentSpec

ID_CHARACTERS = 6


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
        limits: Quotas = NO_QUOTAS,
        unstartable: Callable[[PodSpec], Sequence[FieldViolation]] = lambda spec: (),
    ) -> None:
        """Creates the service of one mesh.

        Args:
            state: Database of the orchestrator.
            runtime: State in memory, which is notified of changes.
            mesh_id: The mesh that new tournaments belong to.
            start_pods: Whether this orchestrator starts pods.
            random_bytes: Returns the given number of random bytes, for tournament ids.
            allowed: What specifications may name.
            limits: What each owner may have.
            unstartable: Returns what the launcher cannot start of the pods of a specification.
        """
        self._state, self._runtime, self._allowed, self._limits = state, runtime, allowed, limits
        self._mesh_id, self._start_pods, self._random_bytes = mesh_id, start_pods, random_bytes
        self._unstartable, self._closing = unstartable, False

    def close(self) -> None:
        """Rejects new tournaments and evaluations from here on."""
        self._closing = True

    async def create(self, request: pb.CreateTournamentRequest, caller: Principal | None = None) -> TournamentRecord:
        """Stores a new tournament, which belongs to the caller; the reconcile loop starts its pods.

        Args:
            request: The request.
            caller: Who makes the request; None: the user of this process.

        Raises:
            InvalidArgument: The specification is invalid, or names what the operator does not allow, what the launcher
                cannot start, or an agent that the caller may not see (BAD_SPEC).
            FailedPrecondition: This orchestrator starts no pods.
            ResourceExhausted: The caller has as much as one owner may have (QUOTA_EXCEEDED).
            Unavailable: The orchestrator is stopping.
        """
        self.check_accepting()
        spec = resolve(request.spec)
        check_specification(spec, self._allowed)
        if violations := self._unstartable(spec.pod):
            raise bad_spec("; ".join(map(str, violations)), violations)
        check_labels(request.labels)
        caller = caller or local_user()
        self.check_limits(spec, caller)
        ancestor = spec.evolution.ancestor_agent_id
        if ancestor and not self._may_read_agent(caller, ancestor):
            raise bad_spec(f"{KEY} = {ancestor!r}: no other tournament has such an agent")
        ownership, key = ownership_for(caller), request_key("CreateTournament", caller)

        def change(transaction: Transaction) -> TournamentRecord:
            return create(transaction, request, spec, self._mesh_id, self._random_bytes, ownership, key, self._limits)

        return await self._change(change)

    async def update(self, request: pb.UpdateTournamentRequest, caller: Principal | None = None) -> TournamentRecord:
        """Changes pool limits or the objective.

        Raises:
            InvalidArgument: The changed specification is invalid (BAD_SPEC).
            NotFound: There is no such tournament.
            FailedPrecondition: The tournament has ended (TOURNAMENT_ENDED).
        """
        key, operator = request_key("UpdateTournament", caller), _is_operator(caller)
        return await self._change(lambda transaction: update(transaction, request, key, self._limits, operator))

    async def cancel(self, request: pb.CancelTournamentRequest, caller: Principal | None = None) -> TournamentRecord:
        """Cancels a tournament; one that has ended, or is ending, stays unchanged.

        Raises:
            NotFound: There is no such tournament.
        """
        reason, key = request.reason or "cancelled", request_key("CancelTournament", caller)
        return await self._change(
            lambda transaction: _once(
                transaction, key, request, lambda tournament: cancel(transaction, tournament, reason)
            )
        )

    async def pause(self, request: pb.PauseTournamentRequest, caller: Principal | None = None) -> TournamentRecord:
        """Pauses a running tournament; one that is paused stays unchanged.

        Raises:
            NotFound: There is no such tournament.
            FailedPrecondition: The tournament is not running (TOURNAMENT_ENDED).
        """
        name = (caller or local_user()).name
        reason = pauses.pause_reason(printable(name), printable(request.reason))
        return await self._change(
            lambda transaction: _once(
                transaction,
                request_key("PauseTournament", caller),
                request,
                lambda found: pauses.pause(transaction, found, reason),
            )
        )

    async def resume(self, request: pb.ResumeTournamentRequest, caller: Principal | None = None) -> TournamentRecord:
        """Resumes a tournament.

        Raises:
            NotFound: There is no such tournament.
            InvalidArgument: Its specification names what the operator no longer allows (BAD_SPEC).
            FailedPrecondition: Its objective was met, or this orchestrator starts no pods.
            ResourceExhausted: Its owner has as much as one owner may have (QUOTA_EXCEEDED).
            Unavailable: The orchestrator is stopping.
        """
        self.check_accepting()
        return await self._change(
            lambda transaction: _once(
                transaction,
                request_key("ResumeTournament", caller),
                request,
                lambda found: resume(transaction, found, self._mesh_id, self._allowed, self._limits),
            )
        )

    async def create_evaluation(self, request: pb.CreateEvaluationRequest, caller: Principal | None = None) -> str:
        """Queues an evaluation and returns its id.

        Args:
            request: The request.
            caller: Who makes the request; None: the user of this process.

        Raises:
            InvalidArgument: A checkpoint is incomplete, or an option is not allowed (BAD_SPEC).
            NotFound: There is no such tournament, or the caller may not see the tournament of a checkpoint.
            FailedPrecondition: This orchestrator starts no pods.
            Unavailable: The orchestrator is stopping.
        """
        self.check_accepting()
        for agent_id in (one.agent_id for one in (request.checkpoint, *request.members, *request.opponents)):
            if agent_id and not self._may_read_agent(caller or local_user(), agent_id):
                raise NotFound(f"agent {agent_id!r}: there is no such agent", resource=NamedResource("agent", agent_id))
        key = request_key("CreateEvaluation", caller)
        evaluation_id = await self._state.transact(evaluations.create_evaluation, request, self._allowed, key)
        self._changed()
        return evaluation_id

    def check_limits(self, spec: TournamentSpec, caller: Principal | None) -> None:
        """Checks that a tournament of a caller may have the pods and the priority of its specification.

        Raises:
            InvalidArgument: The priority is higher than the role of the caller allows (BAD_SPEC).
            ResourceExhausted: Its smallest pool is larger than all pods of the caller may be (QUOTA_EXCEEDED).
        """
        owner = ownership_for(caller or local_user())
        quotas.check_priority(self._limits, owner, spec, operator=_is_operator(caller))
        quotas.check_pool(self._limits, owner, spec)

    async def _change(self, change: Callable[[Transaction], TournamentRecord]) -> TournamentRecord:
        tournament = await self._state.transact(change)
        self._changed()
        return tournament

    def _may_read_agent(self, caller: Principal, agent_id: str) -> bool:
        name = tournament_of(agent_id)
        return reach(caller, name, self._runtime.cache.ownership_of(name)) >= Reach.READ

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
    ownership: Ownership,
    key: str,
    limits: Quotas = NO_QUOTAS,
) -> TournamentRecord:
    """Stores a tournament once per key and request id."""

    def store() -> str:
        quotas.check_tournaments(limits, ownership, unended_tournaments(transaction, ownership))
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
        records.save(transaction, OwnershipRecord(tournament.tournament_id, ownership.owner, ownership.namespace))
        save_labels(transaction, tournament.tournament_id, request.labels)
        transaction.record_event(
            "tournament_created", f"{spec.environment.id} with seed {spec.seed}", tournament_id=tournament.tournament_id
        )
        return tournament.tournament_id

    tournament_id = transaction.run_once(key, request.request_id, request, store)
    return records.find_tournament(transaction, tournament_id)


def _new_id(transaction: Transaction, name: str, random_bytes: Callable[[int], bytes]) -> str:
    while True:
        suffix = base64.b32encode(random_bytes(ID_CHARACTERS)).decode().lower()[:ID_CHARACTERS]
        tournament_id = f"{name}-{suffix}"
        if records.find(transaction, TournamentRecord, tournament_id) is None:
            return tournament_id


def update(
    transaction: Transaction,
    request: pb.UpdateTournamentRequest,
    key: str,
    limits: Quotas,
    operator: bool,
) -> TournamentRecord:
    """Changes pool limits, objective or labels once per request id, if the limits of the owner allow the pool."""

    def change(tournament: TournamentRecord) -> None:
        name = tournament.tournament_id
        labels = labels_of(transaction, name)
        check_etag(tournament.spec, labels, request.etag)
        new_labels = changed_labels(labels, request)
        spec = change_spec(tournament) if changes_specification(request) else tournament.spec
        changes = describe_changes(tournament.spec, spec, labels, new_labels)
        if labels != new_labels:
            save_labels(transaction, name, new_labels)
        transaction.record_event("tournament_updated", changes, tournament_id=name)

    def change_spec(tournament: TournamentRecord) -> TournamentSpec:
        if tournament.state != RUNNING:
            raise FailedPrecondition(
                f"tournament {tournament.tournament_id} has ended ({tournament.reason}) and cannot be changed",
                reason=pauses.TOURNAMENT_ENDED,
            )
        spec = resolve(updated(tournament.spec, request))
        if spec.synchronous and spec.pool.maximum_pods != tournament.spec.pool.maximum_pods:
            raise InvalidArgument(
                "pool.maximum_pods: is the size of a round of this synchronous tournament and cannot be changed"
            )
        owner = ownership_of(transaction, tournament.tournament_id)
        quotas.check_update(limits, owner, tournament.spec, spec, operator=operator)
        records.save(transaction, replace(tournament, spec=spec))
        return spec

    return _once(transaction, key, request, change)


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


def resume(
    transaction: Transaction,
    tournament: TournamentRecord,
    mesh_id: str,
    allowed: Allowed = NOTHING,
    limits: Quotas = NO_QUOTAS,
) -> None:
    """Resumes a paused, cancelled or failed tournament, with new failure counts. Raises as Tournaments.resume."""
    check_specification(tournament.spec, allowed)
    if tournament.state in (ENDING, COMPLETED):
        raise FailedPrecondition(
            f"tournament {tournament.tournament_id} has met its objective ({tournament.reason}); create a new one"
        )
    paused = pauses.end_pause(transaction, tournament.tournament_id)
    if tournament.state == RUNNING:
        if paused:
            transaction.record_event("tournament_resumed", f"it was {paused}", tournament_id=tournament.tournament_id)
        return
    owner = ownership_of(transaction, tournament.tournament_id)
    quotas.check_pool(limits, owner, tournament.spec)
    quotas.check_tournaments(limits, owner, unended_tournaments(transaction, owner))
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


_Change = (
    pb.UpdateTournamentRequest | pb.CancelTournamentRequest | pb.PauseTournamentRequest | pb.ResumeTournamentRequest
)


def _once(
    transaction: Transaction, key: str, request: _Change, change: Callable[[TournamentRecord], None]
) -> TournamentRecord:
    """Changes a tournament once per request id, and returns it as it is after the change."""

    def act() -> str:
        change(records.find_tournament(transaction, request.tournament_id))
        return request.tournament_id

    return records.find_tournament(transaction, transaction.run_once(key, request.request_id, request, act))


def _is_operator(caller: Principal | None) -> bool:
    return access_pb2.ROLE_OPERATOR in (caller or local_user()).roles


def request_key(method: str, caller: Principal | None) -> str:
    """Returns what ids of requests belong to: a caller must not get the answer to the request of another one."""
    by = ownership_for(caller or local_user())
    return f"{method} by {by.namespace}/{by.owner}"
