"""Reads what the leaderboard of a tournament knows: candidates, snapshots, agents and statistics."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from podrace import rpc
from podrace.client import reconnect
from podrace.client.calls.channels import (
    DURABLE_SECONDS,
    LARGEST_PAGE,
    PAGE_SIZE,
    QUICK_SECONDS,
    REPLAY_SECONDS,
    MeshChannels,
    call,
    pages_by,
)
from podrace.client.champion import members_of_champion
from podrace.client.plugin_fallbacks import PluginFallbacks, count_fallbacks, named_plugins
from podrace.client.reconnect import resumed
from podrace.errors import NotFound, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import Tournament

if TYPE_CHECKING:
    from podrace.leaderboard.v1.leaderboard_pb2_grpc import LeaderboardServiceAsyncStub

REGISTRATION_SECONDS = 5.0
"""How long a read is repeated while the leaderboard does not know a tournament that the orchestrator has."""

Response = TypeVar("Response")


class NotYetKnown(Unavailable):
    """The leaderboard does not know a tournament that the orchestrator has created."""


class LeaderboardCalls(MeshChannels):
    """Calls the leaderboard that a tournament names; its channel is opened by the first call that needs it."""

    def _leaderboard(self, tournament: Tournament) -> "LeaderboardServiceAsyncStub":
        stub: LeaderboardServiceAsyncStub = board_grpc.LeaderboardServiceStub(
            self._channel(tournament.leaderboard_address)
        )
        return stub

    async def _read(
        self, tournament: Tournament, method: Callable[..., Awaitable[Response]], request: Any, seconds: float
    ) -> Response:
        """Makes a call about a tournament; repeats it for a while if the leaderboard does not know the tournament.

        Raises:
            NotFound: The orchestrator does not know the tournament either.
            Unavailable: The leaderboard does not answer, or does not know the tournament yet.
        """
        last = time.monotonic() + REGISTRATION_SECONDS
        while True:
            try:
                async with self._not_found_only_if_deleted(tournament):
                    return await call(tournament.leaderboard_address, method, request, seconds)
            except NotYetKnown:
                if time.monotonic() >= last:
                    raise
            await asyncio.sleep(reconnect.RETRY_SECONDS)

    def _pages(
        self, tournament: Tournament, method: Callable[..., Awaitable[Response]], request: Any
    ) -> AsyncIterator[Response]:
        return pages_by(lambda one: self._read(tournament, method, one, DURABLE_SECONDS), request)

    @contextlib.asynccontextmanager
    async def _not_found_only_if_deleted(self, tournament: Tournament) -> AsyncIterator[None]:
        """Raises NotYetKnown if the leaderboard does not know a tournament that the orchestrator has.

        The leaderboard may have been down when the tournament was created, and learns of it a moment later.
        """
        try:
            yield
        except NotFound:
            name, address = tournament.tournament_id, tournament.leaderboard_address
            request = pb.GetTournamentRequest(tournament_id=name)
            await self._ask(self._orchestrator.GetTournament, request, QUICK_SECONDS)
            raise NotYetKnown(f"{address} does not know tournament {name!r} yet; try again in a moment") from None

    async def list_board(
        self, tournament: Tournament, filter: str = "", order_by: str = ""
    ) -> list[board_pb.Candidate]:
        """Returns the candidates on the board, best first.

        Args:
            tournament: The tournament.
            filter: Which; empty: all. Conditions such as `algorithm = ppo AND score > 400`.
            order_by: Fields, each perhaps with `desc`, such as `environment_steps desc`; empty: best first.

        Raises:
            InvalidArgument: The filter or the order cannot be used.
        """
        selection = board_pb.ListCandidatesRequest(filter=filter, order_by=order_by, page_size=PAGE_SIZE)
        found = self._candidate_pages(tournament, selection)
        return [candidate async for page in found for candidate in page.candidates]

    async def list_submissions(
        self, tournament: Tournament, filter: str = "", order_by: str = ""
    ) -> list[board_pb.Candidate]:
        """Returns all submitted candidates, also those that are not on the board, in order of arrival.

        `filter` and `order_by` as of `list_board`.
        """
        selection = board_pb.ListCandidatesRequest(
            all_submissions=True, filter=filter, order_by=order_by, page_size=PAGE_SIZE
        )
        found = self._candidate_pages(tournament, selection)
        return [candidate async for page in found for candidate in page.candidates]

    def submission_pages(self, tournament: Tournament) -> AsyncIterator[board_pb.ListCandidatesResponse]:
        """Yields all submitted candidates in order of arrival, in pages that are as large as the contract allows.

        For clients that keep only a part of each candidate of a long tournament.
        """
        selection = board_pb.ListCandidatesRequest(all_submissions=True, page_size=LARGEST_PAGE)
        return self._candidate_pages(tournament, selection)

    def _candidate_pages(
        self, tournament: Tournament, request: board_pb.ListCandidatesRequest
    ) -> AsyncIterator[board_pb.ListCandidatesResponse]:
        request.tournament_id = tournament.tournament_id
        return self._pages(tournament, self._leaderboard(tournament).ListCandidates, request)

    async def list_snapshots(
        self, tournament: Tournament, filter: str = "", order_by: str = ""
    ) -> list[board_pb.Snapshot]:
        """Returns all snapshots of a tournament, in order of arrival; `filter` and `order_by` as of `list_board`."""
        request = board_pb.ListSnapshotsRequest(
            tournament_id=tournament.tournament_id, page_size=PAGE_SIZE, filter=filter, order_by=order_by
        )
        found = self._pages(tournament, self._leaderboard(tournament).ListSnapshots, request)
        return [snapshot async for page in found for snapshot in page.snapshots]

    def follow_submissions(
        self, tournament: Tournament, resume_token: int = 0
    ) -> AsyncIterator[board_pb.WatchCandidatesResponse]:
        """Yields each candidate submitted after the token, without end; reconnects when the leaderboard restarts."""
        return resumed(functools.partial(self.watch_candidates, tournament), resume_token)

    async def watch_candidates(
        self, tournament: Tournament, resume_token: int
    ) -> AsyncIterator[board_pb.WatchCandidatesResponse]:
        """Streams each candidate submitted after the token; `follow_submissions` also reconnects.

        Raises:
            Unavailable: The connection broke, or the leaderboard does not know the tournament yet (NotYetKnown).
            NotFound: The tournament was deleted.
        """
        request = board_pb.WatchCandidatesRequest(tournament_id=tournament.tournament_id, resume_token=resume_token)
        async with self._not_found_only_if_deleted(tournament):
            method = self._leaderboard(tournament).WatchCandidates
            stream: AsyncIterator[board_pb.WatchCandidatesResponse] = rpc.stream(method, request, deadline_seconds=None)
            async for update in stream:
                yield update

    async def get_agent(self, tournament: Tournament, agent_id: str) -> board_pb.Agent:
        """Returns an agent of the leaderboard of a tournament.

        Raises:
            NotFound: The leaderboard never generated it.
        """
        method, request = self._leaderboard(tournament).GetAgent, board_pb.GetAgentRequest(agent_id=agent_id)
        response: board_pb.GetAgentResponse = await call(tournament.leaderboard_address, method, request, QUICK_SECONDS)
        return response.agent

    async def get_lineage(self, tournament: Tournament, agent_id: str) -> list[board_pb.Agent]:
        """Returns an agent and its ancestors, nearest first."""
        method, request = self._leaderboard(tournament).GetLineage, board_pb.GetLineageRequest(agent_id=agent_id)
        return list((await call(tournament.leaderboard_address, method, request, DURABLE_SECONDS)).agents)

    async def list_agents(self, tournament: Tournament, filter: str = "", order_by: str = "") -> list[board_pb.Agent]:
        """Returns all agents of a tournament by number; `filter` and `order_by` as of `list_board`."""
        request = board_pb.GetLineageRequest(
            tournament_id=tournament.tournament_id, page_size=PAGE_SIZE, filter=filter, order_by=order_by
        )
        found = self._pages(tournament, self._leaderboard(tournament).GetLineage, request)
        return [agent async for page in found for agent in page.agents]

    async def agent_pages(
        self, tournament: Tournament, page_token: str = ""
    ) -> AsyncIterator[tuple[str, board_pb.GetLineageResponse]]:
        """Yields all agents of a tournament by number, with their summaries.

        Args:
            tournament: The tournament.
            page_token: Token of a page that was yielded before, to read agents that were generated since.

        Yields:
            The token of the page, and the page.
        """
        request = board_pb.GetLineageRequest(
            tournament_id=tournament.tournament_id, page_size=PAGE_SIZE, page_token=page_token
        )
        async for page in self._pages(tournament, self._leaderboard(tournament).GetLineage, request):
            # `request` still has the token of this page.
            yield request.page_token, page

    async def get_statistics(self, tournament: Tournament) -> list[board_pb.AlgorithmStatistics]:
        """Returns the statistics of each algorithm of a tournament."""
        return list((await self.get_all_statistics(tournament)).algorithms)

    async def get_episode_correlation(self, tournament: Tournament) -> board_pb.EpisodeCorrelation | None:
        """Returns how the returns of different agents correlate on the same episodes; None if that is unknown."""
        found = await self.get_all_statistics(tournament)
        return found.episode_correlation if found.HasField("episode_correlation") else None

    async def get_all_statistics(self, tournament: Tournament) -> board_pb.GetStatisticsResponse:
        """Returns the statistics of a tournament: of algorithms, of episodes, and of its compute."""
        method = self._leaderboard(tournament).GetStatistics
        request = board_pb.GetStatisticsRequest(
            tournament_id=tournament.tournament_id,
            champion_candidate_ids=[one.manifest_digest for one in members_of_champion(tournament)],
        )
        found: board_pb.GetStatisticsResponse = await self._read(tournament, method, request, DURABLE_SECONDS)
        return found

    async def count_fallbacks(self, tournament: Tournament) -> list[PluginFallbacks]:
        """Returns how often a built-in component replaced each plugin of a tournament.

        Makes no call if the specification names no plugin.
        """
        if not named_plugins(tournament.spec):
            return []
        agents = await self.list_agents(tournament)
        return count_fallbacks(tournament.spec, agents, await self.list_submissions(tournament))

    async def replay_tournament(self, tournament: Tournament) -> board_pb.ReplayTournamentResponse:
        """Lets the leaderboard repeat all its decisions about a tournament and compare them with the recorded ones."""
        method = self._leaderboard(tournament).ReplayTournament
        request = board_pb.ReplayTournamentRequest(tournament_id=tournament.tournament_id)
        return await self._read(tournament, method, request, REPLAY_SECONDS)
