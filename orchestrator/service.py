"""Translates between the gRPC contract and tournaments and assignments; decides nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.assignments.service import RETRY_SECONDS, Assignments, work_of
from orchestrator.assignments.successors import Prepare
from orchestrator.assignments.transactions import AssignedWork
from orchestrator.decisions import dispatch
from orchestrator.decisions.dispatch import Holder
from orchestrator.messages import (
    assignment_message,
    duration,
    duration_seconds,
    evaluation_entry,
    event_message,
    held_lease,
    pod_message,
    preparation_message,
    tournament_message,
)
from orchestrator.state.clock import Clock
from orchestrator.state.records import TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.tournaments.deletion import Deletion
from orchestrator.tournaments.evaluations import Evaluations
from orchestrator.tournaments.lifecycle import Tournaments, request_key
from orchestrator.tournaments.queries import Queries, TournamentView, has_ended
from orchestrator.tournaments.registration import Registration
from orchestrator.tournaments.watch_rest import watch_rest
from orchestrator.validation import Validation
from podrace.access.lease_tokens import HeldLease, LeaseTokens
from podrace.access.principal import current_principal
from podrace.access.tokens import PodTokens
from podrace.errors import Unavailable, Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import DatabaseBackup
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.page_bytes import PAGE_BYTES, fitting, page_of
from podrace.page_tokens import token_after
from podrace.tasks import wait_at_most
from podrace.tournament.v1 import tournament_pb2

WATCH_PERIOD_SECONDS = 0.5
"""Renewals change the progress without a notification, so a watcher is updated at least this often."""
WATCH_PAUSE_SECONDS = 0.25
"""A watcher receives at most four messages per second."""

BackUp = Callable[[], Awaitable[Sequence[DatabaseBackup]]]
"""Makes backups of the databases of both services."""
WITHOUT_CERTIFICATE = ("oidc", "kubernetes")
"""How callers without a certificate are identified."""

Context = grpc.aio.ServicerContext[Any, Any]


class OrchestratorServicer(pb_grpc.OrchestratorServiceServicer):
    """Implements OrchestratorService; the contract describes each method."""

    def __init__(
        self,
        tournaments: Tournaments,
        queries: Queries,
        assignments: Assignments,
        runtime: RuntimeState,
        clock: Clock,
        evaluation_epochs: EvaluationEpochs,
        *,
        leaderboard_address: str,
        token_leaderboard_address: str = "",
        watch_pause_seconds: float = WATCH_PAUSE_SECONDS,
        pod_tokens: PodTokens | None = None,
        lease_tokens: LeaseTokens | None = None,
        validation: Validation | None = None,
        evaluations: Evaluations,
        deletion: Deletion | None = None,
        registration: Registration | None = None,
        back_up: BackUp | None = None,
    ) -> None:
        self._back_up = back_up
        self._queries, self._tournaments, self._assignments = queries, tournaments, assignments
        self._runtime, self._clock = runtime, clock
        self._leaderboard_address = leaderboard_address
        self._token_leaderboard_address = token_leaderboard_address or leaderboard_address
        self._lease_tokens = lease_tokens or LeaseTokens(None)
        self._watch_pause_seconds = watch_pause_seconds
        self._pod_tokens = pod_tokens or PodTokens(None)
        self._validation, self._evaluations = validation, evaluations
        self._evaluation_epochs = evaluation_epochs
        self._deletion, self._registration, self._closing = deletion, registration, False
        self._watchers = 0

    def refuse_new(self) -> None:
        """Rejects new tournaments and evaluations; calls of pods are answered as before."""
        self._tournaments.close()

    def close(self) -> None:
        """Ends waiting calls, so that the server can stop."""
        self._closing = True
        self._tournaments.close()
        self._evaluations.close()
        self._assignments.close()

    # --- calls of users ---------------------------------------------------------------------------------------

    async def CreateTournament(
        self, request: pb.CreateTournamentRequest, context: Context
    ) -> pb.CreateTournamentResponse:
        """Creates and starts a tournament, or only checks its specification."""
        if request.validate_only:
            return await self._validated(request.spec)
        created = await self._tournaments.create(request, current_principal())
        if self._registration:
            # Before the answer, so that a client that reads the board at once does not get NOT_FOUND.
            await self._registration.register(created.tournament_id)
        return pb.CreateTournamentResponse(tournament=self._tournament_message(created))

    async def _validated(self, given: tournament_pb2.TournamentSpec) -> pb.CreateTournamentResponse:
        self._tournaments.check_accepting()
        if self._validation is None:
            raise Unimplemented("validate_only: this server cannot check specifications")
        spec, unchecked = await self._validation.check(given, current_principal())
        self._tournaments.check_limits(spec, current_principal())
        return pb.CreateTournamentResponse(tournament=tournament_pb2.Tournament(spec=spec), unchecked=unchecked)

    async def GetTournament(self, request: pb.GetTournamentRequest, context: Context) -> pb.GetTournamentResponse:
        """Returns a tournament."""
        return pb.GetTournamentResponse(
            tournament=self._tournament_message(await self._queries.get(request.tournament_id))
        )

    async def BackUp(self, request: pb.BackUpRequest, context: Context) -> pb.BackUpResponse:
        """Backs up the databases of both services."""
        if self._back_up is None:
            raise Unimplemented("BackUp: this orchestrator makes no backups")
        return pb.BackUpResponse(backups=await self._back_up())

    async def ListTournaments(self, request: pb.ListTournamentsRequest, context: Context) -> pb.ListTournamentsResponse:
        """Returns a page of tournaments."""
        found = await self._queries.page(request, current_principal())
        page, token = page_of(
            found.records, self._tournament_message, lambda last: found.token(last, last.sequence), more=found.more
        )
        return pb.ListTournamentsResponse(tournaments=page, next_page_token=token)

    async def WatchTournament(
        self, request: pb.WatchTournamentRequest, context: Context
    ) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Streams the current state, then every change."""
        self._watchers += 1
        try:
            async for message in self._watched(request.tournament_id, request.resume_token):
                yield message
        finally:
            self._watchers -= 1

    async def _watched(self, tournament_id: str, token: int) -> AsyncIterator[pb.WatchTournamentResponse]:
        sent = pb.WatchTournamentResponse()
        while True:
            change, begin = self._runtime.changes.next_change(), self._clock.monotonic()
            view = await self._queries.tournament_view(tournament_id, token)
            read = self._clock.monotonic()
            message = self._view_message(view, token)
            built_seconds = self._clock.monotonic() - read
            if message != sent:
                yield message
                token = message.resume_token
                # A message that is written again keeps the memory of what it had before.
                sent = pb.WatchTournamentResponse()
                sent.CopyFrom(message)
                sent.ClearField("events")
            if has_ended(view) and len(message.events) == len(view.events):
                return
            if self._closing:
                raise Unavailable("the orchestrator is stopping; watch again with the last resume_token")
            rest = watch_rest(self._clock.monotonic() - begin, built_seconds, self._watchers)
            await asyncio.sleep(max(self._watch_pause_seconds, rest))
            await wait_at_most(change.wait(), WATCH_PERIOD_SECONDS)

    async def UpdateTournament(
        self, request: pb.UpdateTournamentRequest, context: Context
    ) -> pb.UpdateTournamentResponse:
        """Changes pool limits or the objective."""
        changed = await self._tournaments.update(request, current_principal())
        return pb.UpdateTournamentResponse(tournament=self._tournament_message(changed))

    async def CancelTournament(
        self, request: pb.CancelTournamentRequest, context: Context
    ) -> pb.CancelTournamentResponse:
        """Cancels a tournament."""
        changed = await self._tournaments.cancel(request, current_principal())
        return pb.CancelTournamentResponse(tournament=self._tournament_message(changed))

    async def PauseTournament(self, request: pb.PauseTournamentRequest, context: Context) -> pb.PauseTournamentResponse:
        """Pauses a tournament."""
        changed = await self._tournaments.pause(request, current_principal())
        return pb.PauseTournamentResponse(tournament=self._tournament_message(changed))

    async def ResumeTournament(
        self, request: pb.ResumeTournamentRequest, context: Context
    ) -> pb.ResumeTournamentResponse:
        """Resumes a tournament."""
        changed = await self._tournaments.resume(request, current_principal())
        return pb.ResumeTournamentResponse(tournament=self._tournament_message(changed))

    async def DeleteTournament(
        self, request: pb.DeleteTournamentRequest, context: Context
    ) -> pb.DeleteTournamentResponse:
        """Deletes a tournament."""
        if self._deletion is None:
            raise Unimplemented("DeleteTournament: this server deletes nothing")
        await self._deletion.delete(request.tournament_id, current_principal(), archive=request.archive)
        return pb.DeleteTournamentResponse()

    async def CreateEvaluation(
        self, request: pb.CreateEvaluationRequest, context: Context
    ) -> pb.CreateEvaluationResponse:
        """Queues an evaluation."""
        evaluation_id = await self._tournaments.create_evaluation(request, current_principal())
        return pb.CreateEvaluationResponse(evaluation_id=evaluation_id)

    async def GetEvaluation(self, request: pb.GetEvaluationRequest, context: Context) -> pb.GetEvaluationResponse:
        """Returns an evaluation."""
        found = await self._queries.get_evaluation(request.evaluation_id)
        done = found.phase != WorkPhase.UNFINISHED
        return pb.GetEvaluationResponse(done=done, evaluation=found.result, error=found.error)

    async def WaitEvaluation(self, request: pb.WaitEvaluationRequest, context: Context) -> pb.WaitEvaluationResponse:
        """Returns an evaluation when it has finished."""
        found = await self._evaluations.wait(request.evaluation_id, duration_seconds(request.wait_duration))
        done = found.phase != WorkPhase.UNFINISHED
        return pb.WaitEvaluationResponse(done=done, evaluation=found.result, error=found.error)

    async def CancelEvaluation(
        self, request: pb.CancelEvaluationRequest, context: Context
    ) -> pb.CancelEvaluationResponse:
        """Ends an evaluation."""
        found = await self._evaluations.cancel(request, request_key("CancelEvaluation", current_principal()))
        return pb.CancelEvaluationResponse(evaluation=found.result, error=found.error)

    async def ListEvaluations(self, request: pb.ListEvaluationsRequest, context: Context) -> pb.ListEvaluationsResponse:
        """Returns a page of evaluations."""
        found = await self._queries.evaluations(request, current_principal())
        page, token = page_of(
            found.records, evaluation_entry, lambda last: found.token(last, last.number + 1), more=found.more
        )
        return pb.ListEvaluationsResponse(evaluations=page, next_page_token=token)

    async def ListPods(self, request: pb.ListPodsRequest, context: Context) -> pb.ListPodsResponse:
        """Returns the pods of a tournament, or all pods."""
        listed, selection = self._queries.page_of_pods(request, current_principal())
        page = fitting(pod_message(pod, self._runtime) for pod in listed[selection.position :])
        end = selection.position + len(page)
        token = token_after(selection.list_of, end) if end < len(listed) else ""
        return pb.ListPodsResponse(pods=page, next_page_token=token)

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        """Returns a page of events."""
        found = await self._queries.events(request, current_principal())
        page, token = page_of(
            found.records, event_message, lambda last: found.token(last, last.sequence), more=found.more
        )
        return pb.ListEventsResponse(events=page, next_page_token=token)

    # --- calls of pods ----------------------------------------------------------------------------------------

    async def AcquireAssignment(
        self, request: pb.AcquireAssignmentRequest, context: Context
    ) -> pb.AcquireAssignmentResponse:
        """Assigns work to a pod."""
        token = self._pod_tokens.renewed(current_principal())
        requester = Holder(request.pod_id, request.incarnation)
        wait_seconds = duration_seconds(request.wait_duration)
        answer = await self._assignments.acquire(requester, wait_seconds, request.prepared_agent_id)
        if isinstance(answer, AssignedWork):
            running_seconds = self._running_seconds(answer.tournament.tournament_id)
            epoch = await self._evaluation_epochs.of(answer.tournament.tournament_id, answer.work.work_id)
            assignment = assignment_message(answer, self._runtime.leases.duration_seconds, running_seconds, epoch)
            assignment.lease_token = self._lease_tokens.of(held_lease(answer.work))
            return pb.AcquireAssignmentResponse(assignment=assignment, pod_token=token)
        if isinstance(answer, Prepare):
            return pb.AcquireAssignmentResponse(prepare=preparation_message(answer), pod_token=token)
        if isinstance(answer, dispatch.Drain):
            return pb.AcquireAssignmentResponse(drain=answer.reason, pod_token=token)
        return pb.AcquireAssignmentResponse(retry_after=duration(RETRY_SECONDS), pod_token=token)

    async def RenewAssignment(self, request: pb.RenewAssignmentRequest, context: Context) -> pb.RenewAssignmentResponse:
        """Extends a lease."""
        self._lease_tokens.check(
            "RenewAssignment", request.lease_token, current_principal(), request.assignment_id, request.lease_epoch
        )
        directive = await self._assignments.renew(
            request.assignment_id, request.lease_epoch, request.progress, request.stuck_roles, _caller(request.pod_id)
        )
        response = pb.RenewAssignmentResponse(
            directive=directive.directive,
            lease_duration=duration(self._runtime.leases.duration_seconds),
            reason=directive.reason,
            pod_token=self._pod_tokens.renewed(current_principal()),
        )
        held = self._runtime.leases.held.get(work_of(request.assignment_id))
        if held:
            response.running_duration.CopyFrom(duration(self._running_seconds(held.tournament_id)))
            response.evaluation_epoch = await self._evaluation_epochs.of(held.tournament_id, held.work_id)
            if held.lease_epoch == request.lease_epoch:
                lease = HeldLease(
                    request.assignment_id, held.tournament_id, held.work_id, held.lease_epoch, held.pod_id
                )
                response.lease_token = self._lease_tokens.renewed(lease, request.lease_token)
        return response

    async def CompleteAssignment(
        self, request: pb.CompleteAssignmentRequest, context: Context
    ) -> pb.CompleteAssignmentResponse:
        """Ends a lease."""
        self._lease_tokens.check(
            "CompleteAssignment", request.lease_token, current_principal(), request.assignment_id, request.lease_epoch
        )
        await self._assignments.complete(request, _caller(request.pod_id))
        self._lease_tokens.forget(request.assignment_id)
        return pb.CompleteAssignmentResponse()

    # --- translation ------------------------------------------------------------------------------------------

    def _running_seconds(self, tournament_id: str) -> float:
        return self._runtime.running_time.seconds(tournament_id, self._clock.monotonic())

    def _tournament_message(self, record: TournamentRecord) -> tournament_pb2.Tournament:
        caller = current_principal()
        has_only_token = caller is not None and caller.via in WITHOUT_CERTIFICATE
        address = self._token_leaderboard_address if has_only_token else self._leaderboard_address
        return tournament_message(record, self._runtime, self._clock.monotonic(), address)

    def _view_message(self, view: TournamentView, token: int) -> pb.WatchTournamentResponse:
        events = fitting(map(event_message, view.events), PAGE_BYTES // 2)
        pods = fitting((pod_message(pod, self._runtime) for pod in view.pods), PAGE_BYTES)
        return pb.WatchTournamentResponse(
            tournament=self._tournament_message(view.tournament),
            pods=pods,
            events=events,
            resume_token=events[-1].sequence if events else token,
            omitted_pods=len(view.pods) - len(pods),
        )


def _caller(pod_id: str) -> str:
    """Returns the pod that makes a call: the one of its token, otherwise the one that it names."""
    caller = current_principal()
    return (caller.pod_id if caller else "") or pod_id
