"""Reads what the leaderboard of a tournament knows: candidates, snapshots, agents and statistics."""

import contextlib
import functools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from podrace import rpc
from podrace.client.calls.channels import (
    DURABLE_SECONDS,
    LARGEST_PAGE,
    PAGE_SIZE,
    QUICK_SECONDS,
    REPLAY_SECONDS,
    MeshChannels,
    call,
    pages,
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


class LeaderboardCalls(MeshChannels):
    """Calls the leaderboard that a tournament names; its channel is opened by the first call that needs it."""

    def _leaderboard(self, tournament: Tournament) -> "LeaderboardServiceAsyncStub":
        stub: LeaderboardServiceAsyncStub = board_grpc.LeaderboardServiceStub(
            self._channel(tournament.leaderboard_address)
        )
        return stub

    async def list_board(self, tournament: Tournament) -> list[board_pb.Candidate]:
        """Returns the candidates on the board, best first."""
        return await self._candidates(tournament, all_submissions=False)

    async def list_submissions(self, tournament: Tournament) -> list[board_pb.Candidate]:
        """Returns all submitted candidates, also those that are not on the board, in order of arrival."""
        return await self._candidates(tournament, all_submissions=True)

    async def _candidates(self, tournament: Tournament, *, all_submissions: bool) -> list[board_pb.Candidate]:
        found = self._candidate_pages(tournament, all_submissions=all_submissions, page_size=PAGE_SIZE)
        return [candidate async for page in found for candidate in page.candidates]

    def submission_pages(self, tournament: Tournament) -> AsyncIterator[board_pb.ListCandidatesResponse]:
        """Yields all submitted candidates in order of arrival, in pages that are as large as the contract allows.

        For clients that keep only a part of each candidate of a long tournament.
        """
        return self._candidate_pages(tournament, all_submissions=True, page_size=LARGEST_PAGE)

    async def _candidate_pages(
        self, tournament: Tournament, *, all_submissions: bool, page_size: int
    ) -> AsyncIterator[board_pb.ListCandidatesResponse]:
        request = board_pb.ListCandidatesRequest(
            tournament_id=tournament.tournament_id, all_submissions=all_submissions, page_size=page_size
        )
        method = self._leaderboard(tournament).ListCandidates
        async with self._not_found_only_if_deleted(tournament):
            async for page in pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS):
                yield page

    @contextlib.asynccontextmanager
    async def _not_found_only_if_deleted(self, tournament: Tournament) -> AsyncIterator[None]:
        """Raises Unavailable if the leaderboard does not know a tournament that the orchestrator has.

        The leaderboard may have been down when the tournament was created, and learns of it a moment later.
        """
        try:
            yield
        except NotFound:
            name, address = tournament.tournament_id, tournament.leaderboard_address
            request = pb.GetTournamentRequest(tournament_id=name)
            await self._ask(self._orchestrator.GetTournament, request, QUICK_SECONDS)
            raise Unavailable(f"{address} does not know tournament {name!r} yet; try again in a moment") from None

    async def list_snapshots(self, tournament: Tournament) -> list[board_pb.Snapshot]:
        """Returns all snapshots of a tournament, in order of arrival."""
        request = board_pb.ListSnapshotsRequest(tournament_id=tournament.tournament_id, page_size=PAGE_SIZE)
        method = self._leaderboard(tournament).ListSnapshots
        found = pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
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
            Unavailable: The connection broke, or the leaderboard does not know the tournament yet.
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

    async def list_agents(self, tournament: Tournament) -> list[board_pb.Agent]:
        """Returns all agents of a tournament by number."""
        request = board_pb.GetLineageRequest(tournament_id=tournament.tournament_id, page_size=PAGE_SIZE)
        method = self._leaderboard(tournament).GetLineage
        found = pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
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
        method = self._leaderboard(tournament).GetLineage
        async for page in pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS):
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
        found: board_pb.GetStatisticsResponse = await call(
            tournament.leaderboard_address, method, request, DURABLE_SECONDS
        )
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
        return await call(tournament.leaderboard_address, method, request, REPLAY_SECONDS)
