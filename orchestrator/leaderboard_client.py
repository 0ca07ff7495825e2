"""Calls the leaderboard: registrations, best candidates, new agents, the champion and its snapshots."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from orchestrator.state.records import AgentRecord, TournamentRecord
from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.access.ownership import Ownership
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import NotFound, PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc

BEST_DEADLINE_SECONDS = 2.0
REGISTER_DEADLINE_SECONDS = 5.0
GENERATE_DEADLINE_SECONDS = 10.0
REGISTER_AGENT_DEADLINE_SECONDS = 2.0
"""The agent is assigned without an answer too."""
ARCHIVE_DEADLINE_SECONDS = 60.0
PIECE_BYTES = 1 << 20
"""Bytes of records in one request."""
CHAMPION_DEADLINE_SECONDS = 5.0
SNAPSHOT_DEADLINE_SECONDS = 5.0
KNOWN_DEADLINE_SECONDS = 60.0
BACK_UP_DEADLINE_SECONDS = 300.0
BOARD_PAGE_SIZE = 100
LINEAGE_PAGE_SIZE = 1000
REFRESH_WAIT_SECONDS = 0.25
"""Time that a reconcile cycle waits for the leaderboard; without an answer it continues with the known candidates."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class KnownAgent:
    """An agent as the leaderboard knows it."""

    agent: pb.Agent
    environment_steps: int
    """Its steps up to its last submission."""


class LeaderboardClient:
    """Client of the leaderboard's services.

    leaderboard = LeaderboardClient(address, runtime.best.update)
    fresh = await leaderboard.refresh(tournament_ids)
    agent = await leaderboard.generate(tournament, record, unfinished_agent_ids, failed_agent_ids)
    await leaderboard.close()
    """

    def __init__(
        self,
        address: str,
        on_best: Callable[[str, pb.Candidate], object],
        *,
        token: TokenSource | None = None,
        on_unknown: Callable[[str], object] = lambda _: None,
        check_leads: CheckLeads = only_replica,
    ) -> None:
        """Creates the client; the connection is opened with the first call.

        Args:
            address: Address of the leaderboard.
            on_best: Called with a tournament id and its best candidate after each refresh.
            token: Identifies the orchestrator; None: the connection does.
            on_unknown: Called with the id of a tournament that the leaderboard does not know.
            check_leads: Called before each call that changes something; raises Unavailable if that is refused.
        """
        self._channel = rpc.connect(address, pb.DESCRIPTOR, token=token)
        self._leaderboard: Any = pb_grpc.LeaderboardServiceStub(self._channel)
        self._generator: Any = pb_grpc.GeneratorServiceStub(self._channel)
        self._updater: Any = pb_grpc.UpdaterServiceStub(self._channel)
        self._on_best, self._on_unknown, self._check_leads = on_best, on_unknown, check_leads
        self._registering_or_deleting = asyncio.Lock()
        self._refreshing: dict[str, asyncio.Task[bool]] = {}
        self._reviewing: dict[str, asyncio.Task[pb.ReviewAgentsResponse | None]] = {}
        self._unreachable = False

    async def refresh(self, tournament_ids: Iterable[str]) -> frozenset[str]:
        """Requests the best candidate of each tournament.

        Returns:
            The tournaments that were answered within REFRESH_WAIT_SECONDS. Their requests were sent after this call
            began, so the answers include every submission that was acknowledged before.
        """
        tasks = {
            tournament_id: asyncio.create_task(self._refresh_one(tournament_id))
            for tournament_id in tournament_ids
            if tournament_id not in self._refreshing
        }
        self._refreshing |= tasks
        if tasks:
            await asyncio.wait(tasks.values(), timeout=REFRESH_WAIT_SECONDS)
        return frozenset(name for name, task in tasks.items() if task.done() and task.result())

    async def _refresh_one(self, tournament_id: str) -> bool:
        request = pb.ListCandidatesRequest(tournament_id=tournament_id, page_size=1)
        try:
            response = await rpc.call(self._leaderboard.ListCandidates, request, deadline_seconds=BEST_DEADLINE_SECONDS)
        except NotFound:
            # Its database was restored from a backup, or the tournament is not registered yet.
            self._on_unknown(tournament_id)
            response = pb.ListCandidatesResponse()
        except PodraceError as error:
            if not self._unreachable:
                _log.warning("the leaderboard does not respond; using the last known candidates", error=error.message)
            self._unreachable = True
            return False
        finally:
            del self._refreshing[tournament_id]
        if self._unreachable:
            _log.info("the leaderboard responds again")
        self._unreachable = False
        for candidate in response.candidates[:1]:
            self._on_best(tournament_id, candidate)
        return True

    async def list_board(self, tournament_id: str) -> list[pb.Candidate]:
        """Returns the first candidates of the board of a tournament, by rank; none if the leaderboard does not know it.

        Raises:
            DeadlineExceeded, Unavailable: The leaderboard does not respond.
        """
        request = pb.ListCandidatesRequest(tournament_id=tournament_id, page_size=BOARD_PAGE_SIZE)
        try:
            response = await rpc.call(self._leaderboard.ListCandidates, request, deadline_seconds=BEST_DEADLINE_SECONDS)
        except NotFound:
            self._on_unknown(tournament_id)
            return []
        return list(response.candidates)

    async def list_known_tournaments(self) -> tuple[list[pb.KnownTournament], int]:
        """Returns all tournaments that have agents, and the highest lease epoch that is known.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        found: list[pb.KnownTournament] = []
        request = pb.ListKnownTournamentsRequest()
        while True:
            page: pb.ListKnownTournamentsResponse = await rpc.call(
                self._updater.ListKnownTournaments, request, deadline_seconds=KNOWN_DEADLINE_SECONDS
            )
            found += page.tournaments
            request.page_token = page.next_page_token
            if not request.page_token:
                return found, page.highest_lease_epoch

    async def list_agents(self, tournament_id: str) -> list[KnownAgent]:
        """Returns all agents of a tournament, by number.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        found: list[KnownAgent] = []
        request = pb.GetLineageRequest(tournament_id=tournament_id, page_size=LINEAGE_PAGE_SIZE)
        while True:
            page: pb.GetLineageResponse = await rpc.call(
                self._leaderboard.GetLineage, request, deadline_seconds=KNOWN_DEADLINE_SECONDS
            )
            pairs = zip(page.agents, page.summaries, strict=True)
            found += [KnownAgent(agent, summary.environment_steps) for agent, summary in pairs]
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    async def back_up(self) -> pb.DatabaseBackup:
        """Lets the leaderboard back up its database now.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        request = pb.BackUpRequest()
        response: pb.BackUpResponse = await self._change(self._updater.BackUp, request, BACK_UP_DEADLINE_SECONDS)
        return response.backup

    async def register_tournaments(self, read: Callable[[], Mapping[str, Ownership]]) -> Collection[str]:
        """Makes tournaments known to the leaderboard, and returns their ids.

        Args:
            read: Returns the owner of each tournament. It is called while no deletion is under way, so that a
                tournament that was deleted meanwhile is not registered again.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        async with self._registering_or_deleting:
            owned = read()
            request = pb.RegisterTournamentsRequest(
                tournaments=[
                    pb.RegisteredTournament(tournament_id=name, owner=one.owner, namespace=one.namespace)
                    for name, one in owned.items()
                ]
            )
            await self._change(self._updater.RegisterTournaments, request, REGISTER_DEADLINE_SECONDS)
        return owned.keys()

    async def generate(
        self,
        tournament: TournamentRecord,
        agent: AgentRecord,
        unfinished: Sequence[str],
        failed: Sequence[str],
        *,
        ownership: Ownership,
        running_seconds: float,
        environment_steps: int,
        maximum_stored_bytes: int = 0,
    ) -> pb.GenerateAgentResponse:
        """Generates an agent, or returns the one that was generated for this number before.

        The answer has no agent, but a reason, if there is no work for the pod now.

        Args:
            tournament: Tournament of the agent.
            agent: Record of the agent.
            unfinished: Ids of the other agents that have not ended.
            failed: Ids of the latest agents that have failed.
            ownership: The owner of the tournament.
            running_seconds: How long the tournament has been running.
            environment_steps: Environment steps of all its agents.
            maximum_stored_bytes: Most bytes that the owner may have stored; 0: no limit.

        Raises:
            PodraceError: The error of the generator.
        """
        request = _request_for(tournament, agent, ownership)
        request.unfinished_agent_ids.extend(unfinished)
        request.failed_agent_ids.extend(failed)
        request.pod_id, request.maximum_stored_bytes = agent.pod_id, maximum_stored_bytes
        request.tournament_environment_steps = environment_steps
        request.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        response: pb.GenerateAgentResponse = await self._change(
            self._generator.GenerateAgent, request, GENERATE_DEADLINE_SECONDS
        )
        return response

    async def register_agent(self, tournament: TournamentRecord, agent: pb.Agent, ownership: Ownership) -> None:
        """Makes an agent that was generated before known to a leaderboard that has lost it.

        Raises:
            PodraceError: The error of the generator.
        """
        request = _request_for(tournament, agent, ownership)
        request.agent.CopyFrom(agent)
        await self._change(self._generator.GenerateAgent, request, REGISTER_AGENT_DEADLINE_SECONDS)

    async def review(self, tournaments: Mapping[str, int]) -> dict[str, pb.ReviewAgentsResponse]:
        """Requests which agents the strategies stop early, and which submissions were refused.

        Args:
            tournaments: By tournament, the number of the last refusal that is known.

        Returns:
            The answers by tournament, only those received within REFRESH_WAIT_SECONDS. A later answer counts at the
            next call.
        """
        for tournament_id, refusals in tournaments.items():
            if tournament_id not in self._reviewing:
                self._reviewing[tournament_id] = asyncio.create_task(self._review_one(tournament_id, refusals))
        if self._reviewing:
            await asyncio.wait(self._reviewing.values(), timeout=REFRESH_WAIT_SECONDS)
        done = {name: task for name, task in self._reviewing.items() if task.done()}
        for name in done:
            del self._reviewing[name]
        return {name: answer for name, task in done.items() if (answer := task.result()) is not None}

    async def _review_one(self, tournament_id: str, refusals: int) -> pb.ReviewAgentsResponse | None:
        request = pb.ReviewAgentsRequest(tournament_id=tournament_id, refusals_after=refusals)
        try:
            response: pb.ReviewAgentsResponse = await rpc.call(
                self._generator.ReviewAgents, request, deadline_seconds=BEST_DEADLINE_SECONDS
            )
        except PodraceError as error:
            # The agents continue: stopping early saves compute and is never necessary.
            _log.debug("no review of the agents", tournament_id=tournament_id, error=error.message)
            return None
        return response

    async def name_champion(
        self, tournament_id: str, evaluations: Sequence[pb.FreshEvaluation]
    ) -> pb.NameChampionResponse:
        """Asks the leaderboard to select the champion, given fresh evaluations, and which candidates to evaluate.

        Raises:
            DeadlineExceeded, Unavailable: The leaderboard does not respond.
        """
        request = pb.NameChampionRequest(tournament_id=tournament_id, evaluations=evaluations)
        response: pb.NameChampionResponse = await self._change(
            self._leaderboard.NameChampion, request, CHAMPION_DEADLINE_SECONDS
        )
        return response

    async def record_verification(
        self, tournament_id: str, candidate_id: str, evaluation: Evaluation | None, error: str
    ) -> pb.RecordVerificationResponse:
        """Reports what another pod measured for a held candidate; None: it could not be evaluated, for `error`.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        request = pb.RecordVerificationRequest(
            tournament_id=tournament_id, candidate_id=candidate_id, evaluation=evaluation, error=error
        )
        response: pb.RecordVerificationResponse = await self._change(
            self._updater.RecordVerification, request, CHAMPION_DEADLINE_SECONDS
        )
        return response

    async def archive_tournament(self, tournament_id: str, records: bytes) -> None:
        """Archives a tournament: these records, and what the leaderboard has recorded.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        pieces = (records[begin : begin + PIECE_BYTES] for begin in range(0, len(records), PIECE_BYTES))
        requests = (pb.ArchiveTournamentRequest(tournament_id=tournament_id, records=piece) for piece in pieces)
        self._check_leads()
        await rpc.send(self._updater.ArchiveTournament, requests, deadline_seconds=ARCHIVE_DEADLINE_SECONDS)

    async def delete_tournament(self, tournament_id: str) -> None:
        """Deletes what the leaderboard and the checkpoint store have of a tournament.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        request = pb.DeleteTournamentRequest(tournament_id=tournament_id)
        async with self._registering_or_deleting:
            await self._change(self._updater.DeleteTournament, request, CHAMPION_DEADLINE_SECONDS)

    async def snapshot_champion(
        self, tournament_id: str, number: int, running_seconds: float, environment_steps: int
    ) -> None:
        """Stores the policy of the best candidate, if there is one, as the snapshot with this number.

        Raises:
            PodraceError: The error of the leaderboard.
        """
        request = pb.SnapshotChampionRequest(
            request_id=f"{tournament_id}-snapshot-{number}",
            tournament_id=tournament_id,
            number=number,
            environment_steps=environment_steps,
        )
        request.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        await self._change(self._updater.SnapshotChampion, request, SNAPSHOT_DEADLINE_SECONDS)

    async def _change(self, method: Any, request: Any, deadline_seconds: float) -> Any:
        self._check_leads()
        return await rpc.call(method, request, deadline_seconds=deadline_seconds)

    async def close(self) -> None:
        """Cancels pending requests and closes the connection."""
        pending = [*self._refreshing.values(), *self._reviewing.values()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._channel.close()


def _request_for(
    tournament: TournamentRecord, agent: AgentRecord | pb.Agent, ownership: Ownership
) -> pb.GenerateAgentRequest:
    return pb.GenerateAgentRequest(
        request_id=agent.agent_id,
        tournament_id=tournament.tournament_id,
        spec=tournament.spec,
        number=agent.number,
        owner=ownership.owner,
        namespace=ownership.namespace,
    )
