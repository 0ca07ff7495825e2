"""The calls a person needs: to the orchestrator, and to the leaderboard that each tournament names.

    async with Clients(address) as clients:
        tournament = await clients.get_tournament(tournament_id)
        board = await clients.list_candidates(tournament)

Deadlines are those the contracts recommend; lists are read to their last page. Every method raises PodraceError.
"""

import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.struct_pb2 import Struct

from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

if TYPE_CHECKING:
    from podrace.leaderboard.v1.leaderboard_pb2_grpc import LeaderboardServiceAsyncStub
    from podrace.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceAsyncStub

PAGE_SIZE = 200
"""Keeps a page of tournaments, each with its whole specification, far below the cap of a message."""
QUICK_SECONDS = 5.0
DURABLE_SECONDS = 10.0
REPLAY_SECONDS = 60.0


class Clients:
    """Open channels to one mesh; closed when the block ends."""

    def __init__(self, orchestrator: str) -> None:
        """Opens the channel to the orchestrator at this address; the leaderboards' follow when they are needed."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        channel = self._channel(orchestrator)
        self._orchestrator: OrchestratorServiceAsyncStub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            files = orchestrator_pb2.DESCRIPTOR, leaderboard_pb2.DESCRIPTOR
            self._channels[address] = rpc.connect(address, *files)
        return self._channels[address]

    def _leaderboard(self, tournament: Tournament) -> "LeaderboardServiceAsyncStub":
        stub: LeaderboardServiceAsyncStub = leaderboard_pb2_grpc.LeaderboardServiceStub(
            self._channel(tournament.leaderboard_address)
        )
        return stub

    # --- orchestrator ---

    async def create_tournament(self, spec: TournamentSpec) -> Tournament:
        """Stores a tournament and starts it."""
        request = orchestrator_pb2.CreateTournamentRequest(request_id=str(uuid.uuid4()), spec=spec)
        method = self._orchestrator.CreateTournament
        return (await rpc.call(method, request, deadline_seconds=DURABLE_SECONDS)).tournament

    async def get_tournament(self, tournament_id: str) -> Tournament:
        """Returns a tournament."""
        request = orchestrator_pb2.GetTournamentRequest(tournament_id=tournament_id)
        return (await rpc.call(self._orchestrator.GetTournament, request, deadline_seconds=QUICK_SECONDS)).tournament

    async def list_tournaments(self) -> list[Tournament]:
        """Returns all tournaments, newest first."""
        request = orchestrator_pb2.ListTournamentsRequest(page_size=PAGE_SIZE)
        pages = await _pages(self._orchestrator.ListTournaments, request, deadline_seconds=QUICK_SECONDS)
        return [tournament for page in pages for tournament in page.tournaments]

    def watch_tournament(
        self, tournament_id: str, resume_token: int
    ) -> AsyncIterator[orchestrator_pb2.WatchTournamentResponse]:
        """Streams a tournament, its pods and its events until its end."""
        request = orchestrator_pb2.WatchTournamentRequest(tournament_id=tournament_id, resume_token=resume_token)
        return rpc.stream(self._orchestrator.WatchTournament, request, deadline_seconds=None)

    async def cancel_tournament(self, tournament_id: str, reason: str) -> Tournament:
        """Stops a tournament."""
        request = orchestrator_pb2.CancelTournamentRequest(
            request_id=str(uuid.uuid4()), tournament_id=tournament_id, reason=reason
        )
        method = self._orchestrator.CancelTournament
        return (await rpc.call(method, request, deadline_seconds=QUICK_SECONDS)).tournament

    async def resume_tournament(self, tournament_id: str) -> Tournament:
        """Goes on with a tournament that was stopped."""
        request = orchestrator_pb2.ResumeTournamentRequest(request_id=str(uuid.uuid4()), tournament_id=tournament_id)
        method = self._orchestrator.ResumeTournament
        return (await rpc.call(method, request, deadline_seconds=QUICK_SECONDS)).tournament

    async def create_evaluation(
        self,
        checkpoint: Checkpoint,
        *,
        tournament_id: str,
        episodes: int,
        options: Struct,
        seed: int = 0,
        stochastic: bool = False,
    ) -> str:
        """Queues an evaluation and returns its id."""
        request = orchestrator_pb2.CreateEvaluationRequest(
            request_id=str(uuid.uuid4()),
            tournament_id=tournament_id,
            checkpoint=checkpoint,
            episodes=episodes,
            options=options,
            seed=seed,
            stochastic=stochastic,
        )
        method = self._orchestrator.CreateEvaluation
        return (await rpc.call(method, request, deadline_seconds=QUICK_SECONDS)).evaluation_id

    async def get_evaluation(self, evaluation_id: str) -> orchestrator_pb2.GetEvaluationResponse:
        """Returns where an evaluation stands."""
        request = orchestrator_pb2.GetEvaluationRequest(evaluation_id=evaluation_id)
        return await rpc.call(self._orchestrator.GetEvaluation, request, deadline_seconds=QUICK_SECONDS)

    async def list_pods(self, tournament_id: str) -> list[orchestrator_pb2.Pod]:
        """Returns the pods of a tournament."""
        request = orchestrator_pb2.ListPodsRequest(tournament_id=tournament_id)
        return list((await rpc.call(self._orchestrator.ListPods, request, deadline_seconds=QUICK_SECONDS)).pods)

    async def list_events(self, tournament_id: str) -> list[orchestrator_pb2.Event]:
        """Returns every decision about a tournament, oldest first."""
        request = orchestrator_pb2.ListEventsRequest(tournament_id=tournament_id, page_size=PAGE_SIZE)
        pages = await _pages(self._orchestrator.ListEvents, request, deadline_seconds=QUICK_SECONDS)
        return [event for page in pages for event in page.events]

    # --- leaderboard ---

    async def list_candidates(
        self, tournament: Tournament, *, all_submissions: bool = False
    ) -> list[leaderboard_pb2.Candidate]:
        """Returns the board by rank, or every submission by arrival."""
        request = leaderboard_pb2.ListCandidatesRequest(
            tournament_id=tournament.tournament_id, all_submissions=all_submissions, page_size=PAGE_SIZE
        )
        method = self._leaderboard(tournament).ListCandidates
        pages = await _pages(method, request, deadline_seconds=DURABLE_SECONDS)
        return [candidate for page in pages for candidate in page.candidates]

    def watch_candidates(
        self, tournament: Tournament, resume_token: int
    ) -> AsyncIterator[leaderboard_pb2.WatchCandidatesResponse]:
        """Streams every submission after the token, for ever."""
        request = leaderboard_pb2.WatchCandidatesRequest(
            tournament_id=tournament.tournament_id, resume_token=resume_token
        )
        return rpc.stream(self._leaderboard(tournament).WatchCandidates, request, deadline_seconds=None)

    async def get_lineage(self, tournament: Tournament, agent_id: str) -> list[leaderboard_pb2.Agent]:
        """Returns an agent and its ancestors, nearest first."""
        request = leaderboard_pb2.GetLineageRequest(agent_id=agent_id)
        method = self._leaderboard(tournament).GetLineage
        return list((await rpc.call(method, request, deadline_seconds=DURABLE_SECONDS)).agents)

    async def get_statistics(self, tournament: Tournament) -> list[leaderboard_pb2.AlgorithmStatistics]:
        """Returns statistics per algorithm."""
        request = leaderboard_pb2.GetStatisticsRequest(tournament_id=tournament.tournament_id)
        method = self._leaderboard(tournament).GetStatistics
        return list((await rpc.call(method, request, deadline_seconds=DURABLE_SECONDS)).algorithms)

    async def replay_tournament(self, tournament: Tournament) -> leaderboard_pb2.ReplayTournamentResponse:
        """Takes every decision of a tournament again and compares."""
        request = leaderboard_pb2.ReplayTournamentRequest(tournament_id=tournament.tournament_id)
        method = self._leaderboard(tournament).ReplayTournament
        return await rpc.call(method, request, deadline_seconds=REPLAY_SECONDS)


async def _pages(method: Any, request: Any, *, deadline_seconds: float) -> list[Any]:
    """Calls a list method until its last page; the deadline is each call's."""
    pages = []
    while True:
        pages.append(await rpc.call(method, request, deadline_seconds=deadline_seconds))
        request.page_token = pages[-1].next_page_token
        if not request.page_token:
            return pages
