"""Calls the orchestrator and the leaderboards of a mesh.

Every call has the deadline that its contract recommends, lists are read to their last page, and every method raises
PodraceError.
"""

import functools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from podrace import rpc
from podrace.access.token_file import operator_token
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client.champion import members_of_champion
from podrace.client.plugin_fallbacks import PluginFallbacks, count_fallbacks, named_plugins
from podrace.client.reconnect import resumed
from podrace.errors import DeadlineExceeded, NotFound, ResourceExhausted, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

if TYPE_CHECKING:
    from podrace.leaderboard.v1.leaderboard_pb2_grpc import LeaderboardServiceAsyncStub
    from podrace.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceAsyncStub

END_STATES = {
    tournament_pb2.TOURNAMENT_STATE_COMPLETED,
    tournament_pb2.TOURNAMENT_STATE_CANCELLED,
    tournament_pb2.TOURNAMENT_STATE_FAILED,
}
PAGE_SIZE = 64
"""Entries a page. A page that exceeds the message limit of gRPC (4 MiB) is requested again with half as many."""
QUICK_SECONDS = 5.0
"""Deadline of calls to the orchestrator that write little or nothing, and of calls for a single agent."""
DURABLE_SECONDS = 10.0
"""Deadline of calls that create a tournament, and of other calls to the leaderboard."""
CHECK_SECONDS = 90.0
"""Deadline of CreateTournament that only checks the specification, for which environments are made."""
REPLAY_SECONDS = 60.0
"""Deadline of ReplayTournament."""

Response = TypeVar("Response")


class Client:
    """Calls one mesh; an asynchronous context manager that closes its channels at the end.

    Args:
        orchestrator: Address of the orchestrator, `host:port` or `unix:/path`. A tournament names the address of its
            leaderboard; that channel is opened by the first call that needs it.
    """

    def __init__(self, orchestrator: str) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._address = orchestrator
        channel = self._channel(orchestrator)
        self._orchestrator: OrchestratorServiceAsyncStub = pb_grpc.OrchestratorServiceStub(channel)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            files = pb.DESCRIPTOR, board_pb.DESCRIPTOR
            # Addresses come from the user and from the orchestrator, never from a specification.
            self._channels[address] = rpc.connect(address, *files, token=operator_token(address))
        return self._channels[address]

    def _leaderboard(self, tournament: Tournament) -> "LeaderboardServiceAsyncStub":
        stub: LeaderboardServiceAsyncStub = board_grpc.LeaderboardServiceStub(
            self._channel(tournament.leaderboard_address)
        )
        return stub

    # --- orchestrator ---

    async def create_tournament(self, spec: TournamentSpec, *, request_id: str = "") -> Tournament:
        """Creates a tournament and starts it.

        Args:
            spec: Resolved specification, for instance from `podrace.specification.files.load`.
            request_id: A unique text that makes the call idempotent: a second call with it within a day returns the
                tournament of the first. Default: a new one.

        Raises:
            InvalidArgument: The specification is invalid.
        """
        request = pb.CreateTournamentRequest(request_id=request_id or _request_id(), spec=spec)
        return (await self._ask(self._orchestrator.CreateTournament, request, DURABLE_SECONDS)).tournament

    async def check_specification(self, spec: TournamentSpec) -> tuple[TournamentSpec, list[str]]:
        """Returns a specification with all defaults, and what could not be checked about it and why.

        Raises:
            InvalidArgument: It cannot be used there; `violations` has everything that is wrong, by key.
        """
        request = pb.CreateTournamentRequest(request_id=_request_id(), spec=spec, validate_only=True)
        response = await self._ask(self._orchestrator.CreateTournament, request, CHECK_SECONDS)
        return response.tournament.spec, list(response.unchecked)

    async def get_tournament(self, tournament_id: str) -> Tournament:
        """Returns the current state of a tournament.

        Raises:
            NotFound: The orchestrator does not know the tournament.
        """
        request = pb.GetTournamentRequest(tournament_id=tournament_id)
        return (await self._ask(self._orchestrator.GetTournament, request, QUICK_SECONDS)).tournament

    async def list_tournaments(self) -> list[Tournament]:
        """Returns all tournaments, newest first."""
        request = pb.ListTournamentsRequest(page_size=PAGE_SIZE)
        pages = _pages(self._address, self._orchestrator.ListTournaments, request, QUICK_SECONDS)
        return [tournament async for page in pages for tournament in page.tournaments]

    async def follow(self, tournament: Tournament, resume_token: int = 0) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Yields the tournament with its pods and new events after each change, until the tournament has ended.

        Reconnects when the orchestrator restarts. The last message has one of `END_STATES`.

        Args:
            tournament: The tournament to follow.
            resume_token: `resume_token` of the last message that is known; 0 yields all events.
        """
        watch = functools.partial(self.watch_tournament, tournament.tournament_id)
        async for update in resumed(watch, resume_token):
            yield update
            if update.tournament.state in END_STATES:
                return

    def watch_tournament(self, tournament_id: str, resume_token: int) -> AsyncIterator[pb.WatchTournamentResponse]:
        """Streams a tournament, its pods and its new events; `follow` also reconnects.

        Raises:
            Unavailable: The connection broke before the tournament had ended.
        """
        request = pb.WatchTournamentRequest(tournament_id=tournament_id, resume_token=resume_token)
        return rpc.stream(self._orchestrator.WatchTournament, request, deadline_seconds=None)

    async def get_champion(self, tournament: Tournament) -> Checkpoint:
        """Returns the checkpoint of the current champion, which is final once the tournament is complete.

        For an ensemble it is the first member; `get_champion_members` returns all.

        Raises:
            NotFound: The tournament has no candidate yet.
        """
        return (await self.get_champion_members(tournament))[0]

    async def get_champion_members(self, tournament: Tournament) -> list[Checkpoint]:
        """Returns the checkpoints that act together as the current champion: one, unless it is an ensemble.

        Raises:
            NotFound: The tournament has no candidate yet.
        """
        current = await self.get_tournament(tournament.tournament_id)
        members = members_of_champion(current)
        if not members:
            raise NotFound(f"tournament {current.tournament_id} has no candidate yet")
        return members

    async def cancel_tournament(self, tournament_id: str, reason: str) -> Tournament:
        """Cancels a tournament, with a reason for its record; `resume_tournament` continues it."""
        request = pb.CancelTournamentRequest(request_id=_request_id(), tournament_id=tournament_id, reason=reason)
        return (await self._ask(self._orchestrator.CancelTournament, request, QUICK_SECONDS)).tournament

    async def update_tournament(self, tournament_id: str, changes: TournamentSpec) -> Tournament:
        """Changes the pool limits and the objective of a tournament; fields that are not set keep their values."""
        request = pb.UpdateTournamentRequest(
            request_id=_request_id(),
            tournament_id=tournament_id,
            pool=changes.pool if changes.HasField("pool") else None,
            objective=changes.objective if changes.HasField("objective") else None,
        )
        return (await self._ask(self._orchestrator.UpdateTournament, request, QUICK_SECONDS)).tournament

    async def delete_tournament(self, tournament_id: str) -> None:
        """Deletes a tournament that has ended; has no effect if there is none."""
        request = pb.DeleteTournamentRequest(tournament_id=tournament_id)
        await self._ask(self._orchestrator.DeleteTournament, request, QUICK_SECONDS)

    async def resume_tournament(self, tournament_id: str) -> Tournament:
        """Resumes a cancelled or failed tournament."""
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
        """Queues an evaluation of a checkpoint and returns the id of the evaluation.

        Args:
            checkpoint: The checkpoint to evaluate.
            tournament_id: Tournament of the checkpoint.
            episodes: Number of episodes to finish.
            options: Environment options, merged over those of the tournament.
            seed: Seed of the environments.
            stochastic: Samples actions instead of taking the most likely one.
            members: Other members of an ensemble; empty evaluates the checkpoint alone.
            request_id: A unique text that makes the call idempotent. Default: a new one.
        """
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
        """Returns the state of an evaluation and its result if it is done."""
        request = pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        return await self._ask(self._orchestrator.GetEvaluation, request, QUICK_SECONDS)

    async def list_evaluations(self, tournament_id: str) -> list[pb.EvaluationEntry]:
        """Returns all evaluations of a tournament, oldest first, without traces."""
        request = pb.ListEvaluationsRequest(tournament_id=tournament_id, page_size=PAGE_SIZE)
        pages = _pages(self._address, self._orchestrator.ListEvaluations, request, QUICK_SECONDS)
        return [entry async for page in pages for entry in page.evaluations]

    async def list_pods(self, tournament_id: str) -> list[pb.Pod]:
        """Returns the pods of a tournament."""
        request = pb.ListPodsRequest(tournament_id=tournament_id)
        pages = _pages(self._address, self._orchestrator.ListPods, request, QUICK_SECONDS)
        return [pod async for page in pages for pod in page.pods]

    async def list_events(self, tournament_id: str) -> list[pb.Event]:
        """Returns all events of a tournament, oldest first."""
        request = pb.ListEventsRequest(tournament_id=tournament_id, page_size=PAGE_SIZE)
        pages = _pages(self._address, self._orchestrator.ListEvents, request, QUICK_SECONDS)
        return [event async for page in pages for event in page.events]

    async def _ask(self, method: Callable[..., Awaitable[Response]], request: Message, seconds: float) -> Response:
        return await _call(self._address, method, request, seconds)

    # --- leaderboard ---

    async def list_board(self, tournament: Tournament) -> list[board_pb.Candidate]:
        """Returns the candidates on the board, best first."""
        return await self._candidates(tournament, all_submissions=False)

    async def list_submissions(self, tournament: Tournament) -> list[board_pb.Candidate]:
        """Returns all submitted candidates, also those that are not on the board, in order of arrival."""
        return await self._candidates(tournament, all_submissions=True)

    async def _candidates(self, tournament: Tournament, *, all_submissions: bool) -> list[board_pb.Candidate]:
        request = board_pb.ListCandidatesRequest(
            tournament_id=tournament.tournament_id, all_submissions=all_submissions, page_size=PAGE_SIZE
        )
        method = self._leaderboard(tournament).ListCandidates
        pages = _pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
        return [candidate async for page in pages for candidate in page.candidates]

    async def list_snapshots(self, tournament: Tournament) -> list[board_pb.Snapshot]:
        """Returns all snapshots of a tournament, in order of arrival."""
        request = board_pb.ListSnapshotsRequest(tournament_id=tournament.tournament_id, page_size=PAGE_SIZE)
        method = self._leaderboard(tournament).ListSnapshots
        pages = _pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
        return [snapshot async for page in pages for snapshot in page.snapshots]

    def follow_submissions(
        self, tournament: Tournament, resume_token: int = 0
    ) -> AsyncIterator[board_pb.WatchCandidatesResponse]:
        """Yields each candidate submitted after the token, without end; reconnects when the leaderboard restarts."""
        return resumed(functools.partial(self._watch_candidates, tournament), resume_token)

    def _watch_candidates(
        self, tournament: Tournament, resume_token: int
    ) -> AsyncIterator[board_pb.WatchCandidatesResponse]:
        request = board_pb.WatchCandidatesRequest(tournament_id=tournament.tournament_id, resume_token=resume_token)
        return rpc.stream(self._leaderboard(tournament).WatchCandidates, request, deadline_seconds=None)

    async def get_agent(self, tournament: Tournament, agent_id: str) -> board_pb.Agent:
        """Returns an agent of the leaderboard of a tournament.

        Raises:
            NotFound: The leaderboard never generated it.
        """
        method, request = self._leaderboard(tournament).GetAgent, board_pb.GetAgentRequest(agent_id=agent_id)
        response: board_pb.GetAgentResponse = await _call(
            tournament.leaderboard_address, method, request, QUICK_SECONDS
        )
        return response.agent

    async def get_lineage(self, tournament: Tournament, agent_id: str) -> list[board_pb.Agent]:
        """Returns an agent and its ancestors, nearest first."""
        method, request = self._leaderboard(tournament).GetLineage, board_pb.GetLineageRequest(agent_id=agent_id)
        return list((await _call(tournament.leaderboard_address, method, request, DURABLE_SECONDS)).agents)

    async def list_agents(self, tournament: Tournament) -> list[board_pb.Agent]:
        """Returns all agents of a tournament by number."""
        request = board_pb.GetLineageRequest(tournament_id=tournament.tournament_id, page_size=PAGE_SIZE)
        method = self._leaderboard(tournament).GetLineage
        pages = _pages(tournament.leaderboard_address, method, request, DURABLE_SECONDS)
        return [agent async for page in pages for agent in page.agents]

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
        found: board_pb.GetStatisticsResponse = await _call(
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
        return await _call(tournament.leaderboard_address, method, request, REPLAY_SECONDS)


def _request_id() -> str:
    return str(uuid.uuid4())


async def _call(
    address: str, method: Callable[..., Awaitable[Response]], request: Message, deadline_seconds: float
) -> Response:
    """Makes one call; the error about a service that does not answer names its address."""
    try:
        return await rpc.call(method, request, deadline_seconds=deadline_seconds)
    except (DeadlineExceeded, Unavailable) as error:
        raise type(error)(f"{address} does not answer (waited up to {deadline_seconds:g} s): {error.message}") from None


async def _pages(
    address: str, method: Callable[..., Awaitable[Response]], request: Any, deadline_seconds: float
) -> AsyncIterator[Response]:
    """Calls a list method until its last page, with the deadline for each call.

    A page that is larger than a message may be is requested again with half as many entries.

    Raises:
        ResourceExhausted: A single entry is larger than a message may be.
    """
    while True:
        try:
            page: Any = await _call(address, method, request, deadline_seconds)
        except ResourceExhausted:
            # Present services limit pages by bytes; those of earlier versions do not.
            if getattr(request, "page_size", 0) <= 1:
                raise
            request.page_size //= 2
            continue
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return
