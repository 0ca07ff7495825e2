"""Provides a fake mesh with prepared answers (real gRPC servers in a thread), and a fixture that runs commands."""

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import json_schemas
import pytest

from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli import main
from podrace.client import evaluating, reconnect
from podrace.errors import FailedPrecondition, NotFound, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1 import tournament_pb2 as tournaments_pb

Tournament = tournaments_pb.Tournament
DIGEST = "c0ffee" + 58 * "0"


def candidate(tournament_id: str, number: int, score: float, *, parent: int | None = None, rank: int = 0) -> Any:
    """A submission of agent `number`."""
    entry = board_pb.Candidate(
        candidate_id=f"{number:04x}" + 60 * "a",
        tournament_id=tournament_id,
        agent_id=f"{tournament_id}-a{number}",
        algorithm="ppo",
        score=score,
        standard_error=2.5,
        episodes=32,
        environment_steps=100_000 * (number + 1),
        parent_agent_ids=[] if parent is None else [f"{tournament_id}-a{parent}"],
        rank=rank,
        sequence=number + 1,
        agent_number=number,
    )
    entry.submit_time.FromSeconds(1_000_000 + 10 * (number + 1))
    return entry


def tournament(tournament_id: str, state: str = "COMPLETED") -> Any:
    """A tournament with a champion."""
    entry = Tournament(
        tournament_id=tournament_id,
        state=tournaments_pb.TournamentState.Value(f"TOURNAMENT_STATE_{state}"),
        reason="target return: the best candidate scores 480, the target is 475",
        environment_steps=1_234_567,
        agents=3,
        best_score=480.0,
        best_score_standard_error=2.5,
        best_agent_id=f"{tournament_id}-a2",
        champion_manifest_digest=DIGEST,
        steps_per_second=40_000.0,
    )
    entry.spec.environment.id = "CartPole-v1"
    entry.spec.algorithms["ppo"].ratio = 1.0
    entry.spec.objective.target_return = 475.0
    entry.spec.evaluation.episodes = 32
    entry.create_time.FromSeconds(1_000_000)
    entry.running_duration.FromSeconds(42)
    return entry


@dataclass
class Known:
    """Data of the fake mesh, and the requests it received."""

    tournaments: list[Any] = field(default_factory=list)
    pods: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    board: list[Any] = field(default_factory=list)
    submissions: list[Any] = field(default_factory=list)
    lineage: list[Any] = field(default_factory=list)
    families: dict[str, list[Any]] = field(default_factory=dict)
    """Lineage by agent id; `lineage` is used for other agents."""
    differences: list[str] = field(default_factory=list)
    statistics: list[Any] = field(
        default_factory=lambda: [
            board_pb.AlgorithmStatistics(algorithm="ppo", agents=3, submissions=5, best_score=480.0)
        ]
    )
    compute: Any = None
    statistics_requests: list[Any] = field(default_factory=list)
    snapshots: list[Any] = field(default_factory=list)
    evaluations: list[Any] = field(default_factory=list)
    evaluation: Any = field(default_factory=Evaluation)
    evaluation_error: str = ""
    end_state: str = "COMPLETED"
    ends_by_itself: bool = True
    breaks: int = 0
    on_watch: Callable[[], None] = lambda: None
    requests: list[Any] = field(default_factory=list)
    undeletable: set[str] = field(default_factory=set)
    """Tournaments that the orchestrator refuses to delete."""
    leaderboard_address: str = ""
    unregistered: set[str] = field(default_factory=set)
    """Tournaments that the leaderboard does not know; each is registered after it was asked for once."""
    largest_page: int = 1
    """A list has more than one page as soon as it has two entries: a client that ignores the token fails."""
    page_sizes: list[int] = field(default_factory=list)
    """Page sizes of all requests for a page."""

    def page(self, entries: Sequence[Any], request: Any) -> tuple[Sequence[Any], str]:
        """The requested page of a list, and the token of the next one."""
        self.page_sizes.append(request.page_size)
        begin = int(request.page_token or 0)
        end = begin + min(request.page_size, self.largest_page)
        return entries[begin:end], str(end) if end < len(entries) else ""

    def find(self, tournament_id: str) -> Any:
        for entry in self.tournaments:
            if entry.tournament_id == tournament_id:
                return entry
        raise NotFound(f"tournament {tournament_id} is not known")

    def asked(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]


class FakeOrchestrator(pb_grpc.OrchestratorServiceServicer):
    def __init__(self, known: Known, leaderboard_address: str) -> None:
        self._known = known
        known.leaderboard_address = leaderboard_address
        self._cancelled = asyncio.Event()

    def _with_leaderboard(self, entry: Any) -> Any:
        entry.leaderboard_address = self._known.leaderboard_address
        return entry

    async def CreateTournament(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        entry = tournament(f"{request.spec.name}-abc123", "RUNNING")
        entry.spec.CopyFrom(request.spec)
        self._known.tournaments.insert(0, entry)
        return pb.CreateTournamentResponse(tournament=self._with_leaderboard(entry))

    async def GetTournament(self, request: Any, context: Any) -> Any:
        return pb.GetTournamentResponse(tournament=self._with_leaderboard(self._known.find(request.tournament_id)))

    async def ListTournaments(self, request: Any, context: Any) -> Any:
        page, token = self._known.page(self._known.tournaments, request)
        tournaments = [self._with_leaderboard(entry) for entry in page]
        return pb.ListTournamentsResponse(tournaments=tournaments, next_page_token=token)

    async def WatchTournament(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._known.requests.append(request)
        entry = self._with_leaderboard(self._known.find(request.tournament_id))
        token = self._known.events[-1].sequence
        yield pb.WatchTournamentResponse(
            tournament=entry, pods=self._known.pods, events=self._known.events, resume_token=token
        )
        self._known.on_watch()
        if self._known.breaks:
            self._known.breaks -= 1
            raise Unavailable("the orchestrator is stopping")
        if not self._known.ends_by_itself:
            await self._cancelled.wait()
        entry.state = tournaments_pb.TournamentState.Value(f"TOURNAMENT_STATE_{self._known.end_state}")
        yield pb.WatchTournamentResponse(tournament=entry)

    async def CancelTournament(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        entry = self._with_leaderboard(self._known.find(request.tournament_id))
        entry.reason = request.reason
        self._known.end_state = "CANCELLED"
        self._known.pods = []
        self._cancelled.set()
        return pb.CancelTournamentResponse(tournament=entry)

    async def UpdateTournament(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        entry = self._with_leaderboard(self._known.find(request.tournament_id))
        entry.spec.pool.MergeFrom(request.pool)
        entry.spec.objective.MergeFrom(request.objective)
        return pb.UpdateTournamentResponse(tournament=entry)

    async def PauseTournament(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        entry = self._with_leaderboard(self._known.find(request.tournament_id))
        entry.pause_reason = f"paused by alice: {request.reason}"
        return pb.PauseTournamentResponse(tournament=entry)

    async def DeleteTournament(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        if request.tournament_id in self._known.undeletable:
            raise FailedPrecondition(f"{request.tournament_id} has not ended")
        self._known.tournaments = [
            entry for entry in self._known.tournaments if entry.tournament_id != request.tournament_id
        ]
        return pb.DeleteTournamentResponse()

    async def ResumeTournament(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        entry = self._with_leaderboard(self._known.find(request.tournament_id))
        entry.state, entry.pause_reason = tournaments_pb.TOURNAMENT_STATE_RUNNING, ""
        return pb.ResumeTournamentResponse(tournament=entry)

    async def CreateEvaluation(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        return pb.CreateEvaluationResponse(evaluation_id=f"{request.tournament_id}-e1")

    async def WaitEvaluation(self, request: Any, context: Any) -> Any:
        if self._known.evaluation_error:
            return pb.WaitEvaluationResponse(done=True, error=self._known.evaluation_error)
        return pb.WaitEvaluationResponse(done=True, evaluation=self._known.evaluation)

    async def ListEvaluations(self, request: Any, context: Any) -> Any:
        page, token = self._known.page(self._known.evaluations, request)
        return pb.ListEvaluationsResponse(evaluations=page, next_page_token=token)

    async def ListPods(self, request: Any, context: Any) -> Any:
        return pb.ListPodsResponse(pods=self._known.pods)

    async def ListEvents(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        return pb.ListEventsResponse(events=self._known.events)


class FakeLeaderboard(board_grpc.LeaderboardServiceServicer):
    def __init__(self, known: Known) -> None:
        self._known = known

    def _check_known(self, tournament_id: str) -> None:
        if tournament_id in self._known.unregistered:
            self._known.unregistered.remove(tournament_id)
            raise NotFound(f"tournament {tournament_id} is not known")

    async def ListCandidates(self, request: Any, context: Any) -> Any:
        self._known.requests.append(request)
        self._check_known(request.tournament_id)
        entries = self._known.submissions if request.all_submissions else self._known.board
        page, token = self._known.page(entries, request)
        return board_pb.ListCandidatesResponse(candidates=page, next_page_token=token)

    async def ListSnapshots(self, request: Any, context: Any) -> Any:
        self._check_known(request.tournament_id)
        entries = [one for one in self._known.snapshots if one.tournament_id == request.tournament_id]
        page, token = self._known.page(entries, request)
        return board_pb.ListSnapshotsResponse(snapshots=page, next_page_token=token)

    async def WatchCandidates(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._check_known(request.tournament_id)
        for entry in self._known.submissions:
            yield board_pb.WatchCandidatesResponse(candidate=entry, resume_token=entry.sequence)
        await asyncio.Event().wait()

    async def GetLineage(self, request: Any, context: Any) -> Any:
        self._check_known(request.tournament_id)
        self._known.requests.append(request)
        return board_pb.GetLineageResponse(agents=self._known.families.get(request.agent_id, self._known.lineage))

    async def GetAgent(self, request: Any, context: Any) -> Any:
        families = [agent for family in self._known.families.values() for agent in family]
        for agent in [*self._known.lineage, *families]:
            if agent.agent_id == request.agent_id:
                return board_pb.GetAgentResponse(agent=agent)
        raise NotFound(f"agent {request.agent_id} was never generated")

    async def GetStatistics(self, request: Any, context: Any) -> Any:
        self._check_known(request.tournament_id)
        correlation = board_pb.EpisodeCorrelation(correlation=0.81, pairs=228)
        self._known.statistics_requests.append(request)
        return board_pb.GetStatisticsResponse(
            algorithms=self._known.statistics, episode_correlation=correlation, compute=self._known.compute
        )

    async def ReplayTournament(self, request: Any, context: Any) -> Any:
        self._check_known(request.tournament_id)
        return board_pb.ReplayTournamentResponse(agents=3, submissions=5, differences=self._known.differences)


class FakeMesh:
    """Both services in a thread; `address` is the orchestrator's."""

    def __init__(self, folder: Path, known: Known) -> None:
        self.known = known
        self.address = f"unix:{folder}/o.sock"
        self._leaderboard = f"unix:{folder}/l.sock"
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "FakeMesh":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        services = [
            (
                self._leaderboard,
                board_pb.DESCRIPTOR.services_by_name["LeaderboardService"],
                board_grpc.add_LeaderboardServiceServicer_to_server,
                FakeLeaderboard(self.known),
            ),
            (
                self.address,
                pb.DESCRIPTOR.services_by_name["OrchestratorService"],
                pb_grpc.add_OrchestratorServiceServicer_to_server,
                FakeOrchestrator(self.known, self._leaderboard),
            ),
        ]
        servers = []
        for address, descriptor, add, servicer in services:
            config = rpc.ServerConfig(listen=address, grace_seconds=0.0)
            servers.append(await rpc.Server.start(config, [rpc.Service(descriptor, add, servicer)]))
        self._started.set()
        await self._stop.wait()
        for server in servers:
            with suppress(Exception):
                await server.drain()


@dataclass
class Answer:
    """Result of a command."""

    code: int
    out: str
    err: str
    arguments: Sequence[str] = ()

    @property
    def json(self) -> Any:
        """The one JSON value on stdout, which satisfies the published schema of the command."""
        value = json.loads(self.out)
        json_schemas.check(self.arguments, value)
        return value


Type = Callable[..., Answer]


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Runs commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reconnect, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(evaluating, "RETRY_SECONDS", 0.01)

    def typed(*arguments: str) -> Answer:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Answer(code, out, err, arguments)

    return typed


@pytest.fixture
def canned() -> SimpleNamespace:
    """Functions that create prepared answers."""
    return SimpleNamespace(tournament=tournament, candidate=candidate, DIGEST=DIGEST)


@pytest.fixture
def known() -> Known:
    """A mesh with one tournament of three agents, one of them a child."""
    name = "cartpole-abc123"
    first, second = candidate(name, 0, 120.0, rank=3), candidate(name, 1, 300.0, rank=2)
    child = candidate(name, 2, 480.0, parent=1, rank=1)
    event = pb.Event(sequence=1, tournament_id=name, kind="pod_started", message="2 cores are free")
    pod = pb.Pod(pod_id=f"{name}-p1", tournament_id=name, activity=pb.POD_ACTIVITY_TRAINING, agent_id=f"{name}-a2")
    pod.progress.environment_steps = 123_456
    return Known(
        tournaments=[tournament(name)],
        pods=[pod],
        events=[event],
        board=[child, second, first],
        submissions=[first, second, child],
    )


@pytest.fixture
def mesh(known: Known) -> Iterator[FakeMesh]:
    """A running mesh with the data of `known`."""
    # Not tmp_path, because the length of socket paths is limited.
    with tempfile.TemporaryDirectory() as folder, FakeMesh(Path(folder), known) as running:
        yield running
