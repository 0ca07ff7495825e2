import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.assignments import external_pods
from orchestrator.assignments.external_pods import ExternalPods
from orchestrator.assignments.service import Assignments
from orchestrator.decisions.pool_size import Limits
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import Launcher, ListedPod, NewPod
from orchestrator.launchers.external import ExternalLauncher
from orchestrator.launchers.options import ExternalOptions
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.pool.reconciler import LAUNCHED_POD_RULES, Reconciler
from orchestrator.service import OrchestratorServicer
from orchestrator.state.database import StateDatabase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from orchestrator.tournaments import lifecycle
from orchestrator.tournaments.lifecycle import Tournaments
from podrace import rpc
from podrace.errors import FailedPrecondition, PodraceError, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, Tournament, TournamentSpec

LEASE_SECONDS = 10.0
GIB = 1 << 30


@dataclass
class ManualClock:
    """A clock that a test sets."""

    now: float = 1000.0

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now


@dataclass
class FakeLauncher:
    """A launcher whose pods are entries of a dictionary."""

    pods: dict[str, ListedPod] = field(default_factory=dict)
    stopped: list[tuple[str, bool]] = field(default_factory=list)
    refusal: PodraceError | None = None
    stubborn: bool = False
    log_line: str = ""

    async def list(self) -> list[ListedPod]:
        return list(self.pods.values())

    async def start(self, pod: NewPod) -> None:
        if self.refusal:
            raise self.refusal
        reserved = Resources(pod.spec.cores, pod.spec.memory_bytes, pod.spec.gpus)
        self.pods[pod.pod_id] = ListedPod(pod.pod_id, pod.tournament_id, 1_700_000_000.0, pod.spec.layout, reserved)

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        self.stopped.append((pod_id, kill))
        if kill or not self.stubborn:
            self.pods.pop(pod_id, None)

    def last_log_line(self, pod_id: str) -> str:
        return self.log_line


class FakeLeaderboard(
    leaderboard_pb2_grpc.LeaderboardServiceServicer,
    leaderboard_pb2_grpc.GeneratorServiceServicer,
    leaderboard_pb2_grpc.UpdaterServiceServicer,
):
    """A leaderboard whose answers a test sets."""

    def __init__(self) -> None:
        self.best: dict[str, leaderboard_pb2.Candidate] = {}
        self.generate_requests: list[leaderboard_pb2.GenerateAgentRequest] = []
        self.refusal: PodraceError | None = None
        self.unreachable = False
        self.contenders: list[leaderboard_pb2.Candidate] = []
        self.snapshots: list[leaderboard_pb2.SnapshotChampionRequest] = []
        self.snapshot_refusal: PodraceError | None = None

    def score(self, tournament_id: str, score: float, agent: int = 0) -> None:
        self.best[tournament_id] = leaderboard_pb2.Candidate(
            candidate_id=f"digest-of-{score:g}",
            tournament_id=tournament_id,
            agent_id=f"{tournament_id}-a{agent}",
            score=score,
            standard_error=0.5,
            rank=1,
        )

    async def ListCandidates(
        self, request: leaderboard_pb2.ListCandidatesRequest, context: Any
    ) -> leaderboard_pb2.ListCandidatesResponse:
        assert request.page_size == 1
        if self.unreachable:
            raise FailedPrecondition("unreachable")
        best = self.best.get(request.tournament_id)
        return leaderboard_pb2.ListCandidatesResponse(candidates=[best] if best else [])

    async def NameChampion(
        self, request: leaderboard_pb2.NameChampionRequest, context: Any
    ) -> leaderboard_pb2.NameChampionResponse:
        """Selects the contender with the best fresh score."""
        if self.unreachable:
            raise Unavailable("unreachable")
        fresh = {
            one.candidate_id: one.evaluation.mean_return for one in request.evaluations if one.HasField("evaluation")
        }
        answer = leaderboard_pb2.NameChampionResponse(
            contenders=[
                leaderboard_pb2.Contender(candidate=candidate, episodes=50, seed=7)
                for candidate in self.contenders
                if candidate.candidate_id not in {one.candidate_id for one in request.evaluations}
            ]
        )
        evaluated = [candidate for candidate in self.contenders if candidate.candidate_id in fresh]
        if evaluated:
            champion = max(evaluated, key=lambda candidate: fresh[candidate.candidate_id])
            answer.champion.CopyFrom(champion)
            answer.score, answer.standard_error, answer.reason = fresh[champion.candidate_id], 0.25, "the best score"
        return answer

    async def SnapshotChampion(
        self, request: leaderboard_pb2.SnapshotChampionRequest, context: Any
    ) -> leaderboard_pb2.SnapshotChampionResponse:
        if self.snapshot_refusal:
            raise self.snapshot_refusal
        self.snapshots.append(request)
        return leaderboard_pb2.SnapshotChampionResponse()

    async def GenerateAgent(
        self, request: leaderboard_pb2.GenerateAgentRequest, context: Any
    ) -> leaderboard_pb2.GenerateAgentResponse:
        if self.refusal:
            raise self.refusal
        self.generate_requests.append(request)
        agent = leaderboard_pb2.Agent(
            agent_id=f"{request.tournament_id}-a{request.number}",
            tournament_id=request.tournament_id,
            number=request.number,
            algorithm="ppo",
            reason="fresh",
        )
        return leaderboard_pb2.GenerateAgentResponse(agent=agent)


def _service(name: str, file: Any, module: Any, servicer: object) -> rpc.Service:
    return rpc.Service(file.services_by_name[name], getattr(module, f"add_{name}Servicer_to_server"), servicer)


@dataclass
class Mesh:
    """An orchestrator in this process with a real server, a real database, and a clock that the test sets."""

    clock: ManualClock
    state: StateDatabase
    runtime: RuntimeState
    launcher: Any
    leaderboard: FakeLeaderboard
    reconciler: Reconciler
    assignments: Assignments
    servicer: OrchestratorServicer
    capacity: list[Capacity]
    stub: Any
    requests: Iterator[int] = field(default_factory=itertools.count)

    async def call(self, method: str, request: Any, deadline_seconds: float = 10.0) -> Any:
        return await rpc.call(getattr(self.stub, method), request, deadline_seconds=deadline_seconds)

    def request_id(self) -> str:
        return f"request-{next(self.requests)}"

    async def cycle(self, seconds: float = 0.0) -> None:
        """Advances the clock, and runs reconcile cycles until none is requested."""
        self.clock.now += seconds
        self.runtime.reconcile_requested.set()
        while self.runtime.reconcile_requested.is_set():
            self.runtime.reconcile_requested.clear()
            await self.reconciler.cycle()
            await asyncio.sleep(0)

    # --- calls of users ---------------------------------------------------------------------------------------

    async def create(self, spec: TournamentSpec) -> str:
        request = pb.CreateTournamentRequest(request_id=self.request_id(), spec=spec)
        return str((await self.call("CreateTournament", request)).tournament.tournament_id)

    async def get(self, tournament_id: str) -> Tournament:
        request = pb.GetTournamentRequest(tournament_id=tournament_id)
        found: Tournament = (await self.call("GetTournament", request)).tournament
        return found

    async def cancel(self, tournament_id: str, reason: str = "enough") -> None:
        request = pb.CancelTournamentRequest(request_id=self.request_id(), tournament_id=tournament_id, reason=reason)
        await self.call("CancelTournament", request)

    async def resume(self, tournament_id: str) -> None:
        request = pb.ResumeTournamentRequest(request_id=self.request_id(), tournament_id=tournament_id)
        await self.call("ResumeTournament", request)

    async def evaluate(self, tournament_id: str) -> str:
        request = pb.CreateEvaluationRequest(request_id=self.request_id(), tournament_id=tournament_id, episodes=4)
        request.checkpoint.agent_id, request.checkpoint.manifest_digest = f"{tournament_id}-a0", "digest"
        return str((await self.call("CreateEvaluation", request)).evaluation_id)

    async def pods(self, tournament_id: str = "") -> list[pb.Pod]:
        return list((await self.call("ListPods", pb.ListPodsRequest(tournament_id=tournament_id))).pods)

    async def events(self, tournament_id: str = "") -> list[pb.Event]:
        request = pb.ListEventsRequest(tournament_id=tournament_id, page_size=1000)
        return list((await self.call("ListEvents", request)).events)

    async def kinds(self, tournament_id: str = "") -> list[str]:
        return [event.kind for event in await self.events(tournament_id)]

    # --- calls of pods ----------------------------------------------------------------------------------------

    async def acquire(self, pod_id: str, incarnation: str = "run", wait: float = 0.0) -> pb.AcquireAssignmentResponse:
        request = pb.AcquireAssignmentRequest(pod_id=pod_id, incarnation=incarnation)
        request.wait_duration.FromMilliseconds(int(wait * 1000))
        answer: pb.AcquireAssignmentResponse = await self.call("AcquireAssignment", request, wait + 10)
        return answer

    async def assigned(self, pod_id: str, incarnation: str = "run") -> pb.Assignment:
        answer = await self.acquire(pod_id, incarnation)
        assert answer.WhichOneof("answer") == "assignment", answer
        return answer.assignment

    async def renew(self, assignment: pb.Assignment, **progress: Any) -> pb.RenewAssignmentResponse:
        request = pb.RenewAssignmentRequest(
            assignment_id=assignment.assignment_id,
            lease_epoch=assignment.lease_epoch,
            progress=pb.Progress(**progress),
        )
        answer: pb.RenewAssignmentResponse = await self.call("RenewAssignment", request)
        return answer

    async def complete(
        self, assignment: pb.Assignment, outcome: pb.Outcome.ValueType = pb.OUTCOME_FINISHED, **fields: Any
    ) -> None:
        request = pb.CompleteAssignmentRequest(
            request_id=assignment.assignment_id,
            assignment_id=assignment.assignment_id,
            lease_epoch=assignment.lease_epoch,
            outcome=outcome,
            **fields,
        )
        await self.call("CompleteAssignment", request)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def spec() -> Callable[..., TournamentSpec]:
    """Makes a specification: pods of one core and one gigabyte, and an objective that is not reached."""

    def make(*, minimum_pods: int = 1, maximum_pods: int | None = None, **fields: Any) -> TournamentSpec:
        fields.setdefault("objective", ObjectiveSpec(environment_steps=1_000_000_000))
        made = TournamentSpec(name="race", **fields)
        made.environment.id = "CartPole-v1"
        made.algorithms["ppo"].SetInParent()
        made.pool.minimum_pods = minimum_pods
        if maximum_pods is not None:
            made.pool.maximum_pods = maximum_pods
        return made

    return make


MeshFactory = Callable[..., contextlib.AbstractAsyncContextManager[Mesh]]


@pytest.fixture
def open_mesh(tmp_path: Path, clock: ManualClock) -> MeshFactory:
    """Opens an orchestrator on the database of this test; opening it again is a restart."""

    @contextlib.asynccontextmanager
    async def opened(
        *,
        launcher: Launcher | None = None,
        cores: float = 2.0,
        mesh_id: str = "",
        start_pods: bool = True,
        leaderboard: FakeLeaderboard | None = None,
        external: bool = False,
    ) -> AsyncIterator[Mesh]:
        leaderboard = leaderboard or FakeLeaderboard()
        module, file = leaderboard_pb2_grpc, leaderboard_pb2.DESCRIPTOR
        services = [
            _service(name, file, module, leaderboard)
            for name in ("LeaderboardService", "GeneratorService", "UpdaterService")
        ]
        config = rpc.ServerConfig(grace_seconds=0.0)
        leaderboard_server = await rpc.Server.start(config, services)
        state = StateDatabase.open(tmp_path / "orchestrator.sqlite", clock)
        runtime = RuntimeState(LEASE_SECONDS)
        await state.transact(lifecycle.cancel_running, "its mesh stopped", but_mesh_id=mesh_id)
        runtime.restore(await state.transact(load_saved_state), clock.monotonic())
        state.on_saved(runtime.cache.apply_saved)
        board = LeaderboardClient(leaderboard_server.address, runtime.best.update)
        capacity = [Capacity(Resources(cores, 64 * GIB, 0), 64 * GIB)]
        external = ExternalPods(state, runtime, clock) if external else None
        launcher = launcher or (ExternalLauncher(external, ExternalOptions(9090)) if external else FakeLauncher())

        async def sensed() -> Capacity:
            return capacity[-1]

        if not external:
            launcher.capacity = sensed
        randomness = itertools.count()
        assignments = Assignments(state, runtime, board, clock, external_pods=external)
        servicer = OrchestratorServicer(
            Tournaments(
                state,
                runtime,
                mesh_id=mesh_id,
                start_pods=start_pods,
                random_bytes=lambda count: bytes([next(randomness)] * count),
            ),
            assignments,
            runtime,
            clock,
            leaderboard_address=leaderboard_server.address,
            watch_pause_seconds=0.0,
        )
        limits = Limits(start_pods, terminate_seconds=20.0, kill_seconds=60.0)
        rules = external_pods.EXTERNAL_POD_RULES if external else LAUNCHED_POD_RULES
        reconciler = Reconciler(state, runtime, board, launcher, clock, limits=limits, period_seconds=0.01, rules=rules)
        server = await rpc.Server.start(config, [_service("OrchestratorService", pb.DESCRIPTOR, pb_grpc, servicer)])
        async with rpc.connect(server.address, pb.DESCRIPTOR) as channel:
            stub = pb_grpc.OrchestratorServiceStub(channel)
            yield Mesh(clock, state, runtime, launcher, leaderboard, reconciler, assignments, servicer, capacity, stub)
        servicer.close()
        await server.drain()
        await reconciler.close()
        await board.close()
        await leaderboard_server.drain()
        state.close()

    return opened


@pytest.fixture
async def mesh(open_mesh: MeshFactory) -> AsyncIterator[Mesh]:
    async with open_mesh() as opened:
        yield opened


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for socket paths."""
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)
