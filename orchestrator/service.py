"""The servicer: translates between the contract and tournaments, assignments; decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from orchestrator.assignments.service import RETRY_SECONDS, Assignments, work_of
from orchestrator.assignments.transactions import AssignedWork
from orchestrator.decisions import dispatch
from orchestrator.decisions.dispatch import Holder
from orchestrator.messages import (
    assignment_message,
    duration,
    duration_seconds,
    evaluation_entry,
    event_message,
    pod_message,
    tournament_message,
)
from orchestrator.state.clock import Clock
from orchestrator.state.records import TournamentRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from orchestrator.tournaments.lifecycle import Tournaments, TournamentView, has_ended
from podrace.errors import Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1 import tournament_pb2

WATCH_PERIOD_SECONDS = 0.5
"""Progress comes with renewals, which ring no bell: a watcher looks at least this often."""
WATCH_PAUSE_SECONDS = 0.25
"""A watcher is sent no more than four messages a second."""
WATCH_REST_FACTOR = 9.0
"""Times what a message took: so long a watcher of a large pool waits for the next, and leaves the time to the pods."""

Context = grpc.aio.ServicerContext[Any, Any]


class OrchestratorServicer(pb_grpc.OrchestratorServiceServicer):
    """Serves the contract; each method is described there."""

    def __init__(
        self,
        tournaments: Tournaments,
        assignments: Assignments,
        runtime: RuntimeState,
        clock: Clock,
        *,
        leaderboard_address: str,
        watch_pause_seconds: float = WATCH_PAUSE_SECONDS,
    ) -> None:
        self._tournaments, self._assignments, self._runtime, self._clock = tournaments, assignments, runtime, clock
        self._leaderboard_address = leaderboard_address
        self._watch_pause_seconds = watch_pause_seconds
        self._closing = False

    def refuse_new(self) -> None:
        """Takes nothing new from people; pods are answered as before."""
        self._tournaments.close()

    def close(self) -> None:
        """Ends the calls that wait, so that the server can stop."""
        self._closing = True
        self._tournaments.close()
        self._assignments.close()

    # --- people -----------------------------------------------------------------------------------------------

    async def CreateTournament(
        self, request: pb.CreateTournamentRequest, context: Context
    ) -> pb.CreateTournamentResponse:
        """Stores and starts; see the contract."""
        return pb.CreateTournamentResponse(tournament=self._tournament_message(await self._tournaments.create(request)))

    async def GetTournament(self, request: pb.GetTournamentRequest, context: Context) -> pb.GetTournamentResponse:
        """Reads; see the contract."""
        return pb.GetTournamentResponse(
            tournament=self._tournament_message(await self._tournaments.get(request.tournament_id))
        )

    async def ListTournaments(self, request: pb.ListTournamentsRequest, context: Context) -> pb.ListTournamentsResponse:
        """Reads a page; see the contract."""
        found, token = await self._tournaments.page(request.page_size, request.page_token)
        return pb.ListTournamentsResponse(tournaments=map(self._tournament_message, found), next_page_token=token)

    async def WatchTournament(
        self, request: pb.WatchTournamentRequest, context: Context
    ) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Sends what is, then what changes; see the contract."""
        token, sent = request.resume_token, pb.WatchTournamentResponse()
        while True:
            change, begin = self._runtime.changes.next_change(), self._clock.monotonic()
            seen = await self._tournaments.tournament_view(request.tournament_id, token)
            message = self._view_message(seen, token)
            if message != sent:
                yield message
                token = message.resume_token
                sent.CopyFrom(message)
                sent.ClearField("events")
            if has_ended(seen):
                return
            if self._closing:
                raise Unavailable("the orchestrator is stopping; watch again with the last resume_token")
            spent_seconds = self._clock.monotonic() - begin
            await asyncio.sleep(max(self._watch_pause_seconds, WATCH_REST_FACTOR * spent_seconds))
            await _wait(change, WATCH_PERIOD_SECONDS)

    async def UpdateTournament(
        self, request: pb.UpdateTournamentRequest, context: Context
    ) -> pb.UpdateTournamentResponse:
        """Changes; see the contract."""
        return pb.UpdateTournamentResponse(tournament=self._tournament_message(await self._tournaments.update(request)))

    async def CancelTournament(
        self, request: pb.CancelTournamentRequest, context: Context
    ) -> pb.CancelTournamentResponse:
        """Stops; see the contract."""
        return pb.CancelTournamentResponse(tournament=self._tournament_message(await self._tournaments.cancel(request)))

    async def ResumeTournament(
        self, request: pb.ResumeTournamentRequest, context: Context
    ) -> pb.ResumeTournamentResponse:
        """Goes on; see the contract."""
        return pb.ResumeTournamentResponse(tournament=self._tournament_message(await self._tournaments.resume(request)))

    async def CreateEvaluation(
        self, request: pb.CreateEvaluationRequest, context: Context
    ) -> pb.CreateEvaluationResponse:
        """Queues; see the contract."""
        return pb.CreateEvaluationResponse(evaluation_id=await self._tournaments.create_evaluation(request))

    async def GetEvaluation(self, request: pb.GetEvaluationRequest, context: Context) -> pb.GetEvaluationResponse:
        """Reads; see the contract."""
        found = await self._tournaments.get_evaluation(request.evaluation_id)
        done = found.phase != WorkPhase.UNFINISHED
        return pb.GetEvaluationResponse(done=done, evaluation=found.result, error=found.error)

    async def ListEvaluations(self, request: pb.ListEvaluationsRequest, context: Context) -> pb.ListEvaluationsResponse:
        """Reads a page; see the contract."""
        found, token = await self._tournaments.evaluations(request.tournament_id, request.page_size, request.page_token)
        return pb.ListEvaluationsResponse(evaluations=map(evaluation_entry, found), next_page_token=token)

    async def ListPods(self, request: pb.ListPodsRequest, context: Context) -> pb.ListPodsResponse:
        """Reads; see the contract."""
        pods = self._tournaments.pods(request.tournament_id)
        return pb.ListPodsResponse(pods=[pod_message(pod, self._runtime) for pod in pods])

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        """Reads a page; see the contract."""
        found, token = await self._tournaments.events(request.tournament_id, request.page_size, request.page_token)
        return pb.ListEventsResponse(events=map(event_message, found), next_page_token=token)

    # --- pods -------------------------------------------------------------------------------------------------

    async def AcquireAssignment(
        self, request: pb.AcquireAssignmentRequest, context: Context
    ) -> pb.AcquireAssignmentResponse:
        """Hands out work; see the contract."""
        requester = Holder(request.pod_id, request.incarnation)
        answer = await self._assignments.acquire(requester, duration_seconds(request.wait_duration))
        if isinstance(answer, AssignedWork):
            running_seconds = self._running_seconds(answer.tournament.tournament_id)
            assignment = assignment_message(answer, self._runtime.leases.duration_seconds, running_seconds)
            return pb.AcquireAssignmentResponse(assignment=assignment)
        if isinstance(answer, dispatch.Drain):
            return pb.AcquireAssignmentResponse(drain=answer.reason)
        return pb.AcquireAssignmentResponse(retry_after=duration(RETRY_SECONDS))

    async def RenewAssignment(self, request: pb.RenewAssignmentRequest, context: Context) -> pb.RenewAssignmentResponse:
        """Prolongs; see the contract."""
        directive = await self._assignments.renew(request.assignment_id, request.lease_epoch, request.progress)
        response = pb.RenewAssignmentResponse(
            directive=directive.directive,
            lease_duration=duration(self._runtime.leases.duration_seconds),
            reason=directive.reason,
        )
        held = self._runtime.leases.held.get(work_of(request.assignment_id))
        if held:
            response.running_duration.CopyFrom(duration(self._running_seconds(held.tournament_id)))
        return response

    async def CompleteAssignment(
        self, request: pb.CompleteAssignmentRequest, context: Context
    ) -> pb.CompleteAssignmentResponse:
        """Takes back; see the contract."""
        await self._assignments.complete(request)
        return pb.CompleteAssignmentResponse()

    # --- translation ------------------------------------------------------------------------------------------

    def _running_seconds(self, tournament_id: str) -> float:
        return self._runtime.running_time.seconds(tournament_id, self._clock.monotonic())

    def _tournament_message(self, record: TournamentRecord) -> tournament_pb2.Tournament:
        return tournament_message(record, self._runtime, self._clock.monotonic(), self._leaderboard_address)

    def _view_message(self, seen: TournamentView, token: int) -> pb.WatchTournamentResponse:
        return pb.WatchTournamentResponse(
            tournament=self._tournament_message(seen.tournament),
            pods=[pod_message(pod, self._runtime) for pod in seen.pods],
            events=map(event_message, seen.events),
            resume_token=seen.events[-1].sequence if seen.events else token,
        )


async def _wait(change: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(change.wait(), seconds)
    except TimeoutError:
        return
