"""The calls a person needs: to the orchestrator, and to the leaderboard that each tournament names.

    async with Clients(address) as clients:
        newest, *older = await clients.list_tournaments()
        board = await clients.list_candidates(newest)

Deadlines are those the contracts recommend; lists are read to their last page. Every method raises PodraceError.
"""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client.plugin_fallbacks import PluginFallbacks, count_fallbacks, named_plugins
from podrace.errors import DeadlineExceeded, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

if TYPE_CHECKING:
    from podrace.leaderboard.v1.leaderboard_pb2_grpc import LeaderboardServiceAsyncStub
    from podrace.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceAsyncStub

PAGE_SIZE = 200
"""Keeps a page of tournaments, each with its whole specification, far below the cap of a message."""
QUICK_SECONDS = 5.0
DURABLE_SECONDS = 10.0
REPLAY_SECONDS = 60.0

Response = TypeVar("Response")


class Clients:
    """Open channels to one mesh; closed when the block ends."""

    def __init__(self, orchestrator: str) -> None:
        """Opens the channel to the orchestrator at this address; the leaderboards' follow when they are needed."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._address = orchestrator
        channel = self._channel(orchestrator)
        self._orchestrator: OrchestratorServiceAsyncStub = pb_grpc.OrchestratorServiceStub(channel)

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            files = pb.DESCRIPTOR, board_pb.DESCRIPTOR
            self._channels[address] = rpc.connect(address, *files)
        return self._channels[address]

    def _leaderboard(self, tournament: Tournament) -> "LeaderboardServiceAsyncStub":
        stub: LeaderboardServiceAsyncStub = board_grpc.LeaderboardServiceStub(
            self._channel(tournament.leaderboard_address)
        )
        return stub

    # --- orchestrator ---

    async def create_tournament(self, spec: TournamentSpec, *, request_id: str = "") -> Tournament:
        """Stores a tournament and starts it; one of the same request within a day is that one."""
        request = pb.CreateTournamentRequest(request_id=request_id or _request_id(), spec=spec)
        return (await self._ask(self._orchestrator.CreateTournament, request, DURABLE_SECONDS)).tournament

    async def list_tournaments(self) -> list[Tournament]:
        """Returns all tournaments, newest first."""
        request = pb.ListTournamentsRequest(page_size=PAGE_SIZE)
        pages = _pages(self._address, self._orchestrator.ListTournaments, request, QUICK_SECONDS)
        return [tournament async for page in pages for tournament in page.tournaments]

    def watch_tournament(self, tournament_id: str, resume_token: int) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Streams a tournament, its pods and its events until its end."""
        request = pb.WatchTournamentRequest(tournament_id=tournament_id, resume_token=resume_token)
        return rpc.stream(self._orchestrator.WatchTournament, request, deadline_seconds=None)

    async def cancel_tournament(self, tournament_id: str, reason: str) -> Tournament:
        """Stops a tournament."""
        request = pb.CancelTournamentRequest(request_id=_request_id(), tournament_id=tournament_id, reason=reason)
        return (await self._ask(self._orchestrator.CancelTournament, request, QUICK_SECONDS)).tournament

    async def update_tournament(self, tournament_id: str, changes: TournamentSpec) -> Tournament:
        """Changes the limits of the pool and the objective, as far as they are set."""
        request = pb.UpdateTournamentRequest(
            request_id=_request_id(),
            tournament_id=tournament_id,
            pool=changes.pool if changes.HasField("pool") else None,
            objective=changes.objective if changes.HasField("objective") else None,
        )
        return (await self._ask(self._orchestrator.UpdateTournament, request, QUICK_SECONDS)).tournament

    async def resume_tournament(self, tournament_id: str) -> Tournament:
        """Goes on with a tournament that was stopped."""
        request = pb.ResumeTournamentRequest(request_id=_request_id(), tournament_id=tournament_id)
        return (await self._ask(self._orchestrator.ResumeTournament, request, QUICK_SECONDS)).tournament

    async def create_evaluation(
        self,
        checkpoint: Checkpoint,
        *,
        tournament_id: str,
        episodes: int,
        options: Struct,
        seed: int = 0,
        stochastic: bool = False,
        members: Sequence[Checkpoint] = (),
        request_id: str = "",
    ) -> str:
        """Queues an evaluation, of an ensemble if there are other members, and returns its id."""
        request = pb.CreateEvaluationRequest(
            request_id=request_id or _request_id(),
            tournament_id=tournament_id,
            checkpoint=checkpoint,
            episodes=episodes,
            options=options,
            seed=seed,
            stochastic=stochastic,
            members=members,
        )
        return (await self._ask(self._orchestrator.CreateEvaluation, request, QUICK_SECONDS)).evaluation_id

    async def get_evaluation(self, evaluation_id: str) -> pb.GetEvaluationResponse:
        """Returns where an evaluation stands."""
        request = pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        return await self._ask(self._orchestrator.GetEvaluation, request, QUICK_SECONDS)

    async def list_evaluations(self, tournament_id: str) -> list[pb.EvaluationEntry]:
        """Returns every evaluation of a tournament, oldest first, without traces."""
        request = pb.ListEvaluationsRequest(tournament_id=tournament_id, page_size=PAGE_SIZE)
        pages = _pages(self._address, self._orchestrator.ListEvaluations, request, QUICK_SECONDS)
        return [entry async for page in pages for entry in page.evaluations]

    async def list_pods(self, tournament_id: str) -> list[pb.Pod]:
        """Returns the pods of a tournament."""
        request = pb.ListPodsRequest(tournament_id=tournament_id)
        return list((await self._ask(self._orchestrator.ListPods, request, QUICK_SECONDS)).pods)

    async def list_events(self, tournament_id: str) -> list[pb.Event]:
        """Returns every decision about a tournament, oldest first."""
        request = pb.ListEventsRequest(tournament_id=tournament_id, page_size=PAGE_SIZE)
        pages = _pages(self._address, self._orchestrator.ListEvents, request, QUICK_SECONDS)
        return [event async for page in pages for event in page.events]

    async def _ask(self, method: Callable[..., Awaitable[Response]], request: Message, seconds: float) -> Response:
        return await _call(self._address, method, request, seconds)

    # --- leaderboard ---

    async def list_candidates(
        self, tournament: Tournament, *, all_submissions: bool = False
    ) -> list[board_pb.Candidate]:
        """Returns the board by rank, or every submission by arrival."""
        request = board_pb.ListCandidatesRequest(
            tournament_id=tournament.tournament_id, all_submissions=all_submissions, page_size=PAGE_SIZE
        )
        method = self._leaderboard(tournament).ListCandidates
        pages = _pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
        return [candidate async for page in pages for candidate in page.candidates]

    async def list_snapshots(self, tournament: Tournament) -> list[board_pb.Snapshot]:
        """Returns every snapshot of a tournament by arrival."""
        request = board_pb.ListSnapshotsRequest(tournament_id=tournament.tournament_id, page_size=PAGE_SIZE)
        method = self._leaderboard(tournament).ListSnapshots
        pages = _pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
        return [snapshot async for page in pages for snapshot in page.snapshots]

    def watch_candidates(
        self, tournament: Tournament, resume_token: int
    ) -> AsyncIterator[board_pb.WatchCandidatesResponse]:
        """Streams every submission after the token, for ever."""
        request = board_pb.WatchCandidatesRequest(tournament_id=tournament.tournament_id, resume_token=resume_token)
        return rpc.stream(self._leaderboard(tournament).WatchCandidates, request, deadline_seconds=None)

    async def get_lineage(self, tournament: Tournament, agent_id: str) -> list[board_pb.Agent]:
        """Returns an agent and its ancestors, nearest first."""
        method, request = self._leaderboard(tournament).GetLineage, board_pb.GetLineageRequest(agent_id=agent_id)
        return list((await _call(tournament.leaderboard_address, method, request, DURABLE_SECONDS)).agents)

    async def list_agents(self, tournament: Tournament) -> list[board_pb.Agent]:
        """Returns every agent of a tournament, by number."""
        request = board_pb.GetLineageRequest(tournament_id=tournament.tournament_id, page_size=PAGE_SIZE)
        method = self._leaderboard(tournament).GetLineage
        pages = _pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
        return [agent async for page in pages for agent in page.agents]

    async def get_statistics(self, tournament: Tournament) -> list[board_pb.AlgorithmStatistics]:
        """Returns statistics per algorithm."""
        method = self._leaderboard(tournament).GetStatistics
        request = board_pb.GetStatisticsRequest(tournament_id=tournament.tournament_id)
        return list((await _call(tournament.leaderboard_address, method, request, DURABLE_SECONDS)).algorithms)

    async def count_fallbacks(self, tournament: Tournament) -> list[PluginFallbacks]:
        """Returns how often built-in components replaced the plugins of a tournament; no call if it names none."""
        if not named_plugins(tournament.spec):
            return []
        agents = await self.list_agents(tournament)
        return count_fallbacks(tournament.spec, agents, await self.list_candidates(tournament, all_submissions=True))

    async def replay_tournament(self, tournament: Tournament) -> board_pb.ReplayTournamentResponse:
        """Takes every decision of a tournament again and compares."""
        method = self._leaderboard(tournament).ReplayTournament
        request = board_pb.ReplayTournamentRequest(tournament_id=tournament.tournament_id)
        return await _call(tournament.leaderboard_address, method, request, REPLAY_SECONDS)


def _request_id() -> str:
    return str(uuid.uuid4())


async def _call(
    address: str, method: Callable[..., Awaitable[Response]], request: Message, deadline_seconds: float
) -> Response:
    """Makes one call; the line about a silent service names it."""
    try:
        return await rpc.call(method, request, deadline_seconds=deadline_seconds)
    except (DeadlineExceeded, Unavailable) as error:
        raise type(error)(f"{address} does not answer (waited up to {deadline_seconds:g} s): {error.message}") from None


async def _pages(
    address: str, method: Callable[..., Awaitable[Response]], request: Any, deadline_seconds: float
) -> AsyncIterator[Response]:
    """Calls a list method until its last page; the deadline is each call's."""
    while True:
        page: Any = await _call(address, method, request, deadline_seconds)
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return
