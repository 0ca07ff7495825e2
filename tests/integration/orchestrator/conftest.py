import asyncio
import contextlib
import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_services import ORPHANED_SECONDS, STARTING_SILENT_SECONDS, TOGETHER_SECONDS, FakeLauncher, FakeLeaderboard

from orchestrator.assignments import external_pods
from orchestrator.assignments.evaluation_epochs import EvaluationEpochs
from orchestrator.assignments.external_pods import ExternalPods
from orchestrator.assignments.service import Assignments
from orchestrator.decisions.pod_silence import SilenceLimits
from orchestrator.decisions.pool_size import Limits
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.external import ExternalLauncher
from orchestrator.launchers.options import ExternalOptions
from orchestrator.leaderboard_client import LeaderboardClient
from orchestrator.pool.pool_rules import LAUNCHED_POD_RULES
from orchestrator.pool.reconciler import Reconciler
from orchestrator.pool.silent_pods import NEVER_SILENT
from orchestrator.service import OrchestratorServicer
from orchestrator.state.database import StateDatabase
from orchestrator.state.runtime import RuntimeState
from orchestrator.state.saved_state import load_saved_state
from orchestrator.tournaments import lifecycle
from orchestrator.tournaments.evaluations import Evaluations
from orchestrator.tournaments.lifecycle import Tournaments
from orchestrator.tournaments.queries import Queries
from orchestrator.tournaments.registration import Registration
from podrace import rpc
from podrace.access.guard import Guard
from podrace.access.lease_tokens import LeaseTokens
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, Tournament, TournamentSpec

LEASE_SECONDS = 10.0
SILENT_SECONDS = 10.0
OPENING_SILENT_SECONDS = 120.0
GIB = 1 << 30
DIGEST = "0123456789abcdef" * 4


@dataclass
class ManualClock:
    """A clock that a test sets."""

    now: float = 1000.0
    jumped_seconds: float = 0.0
    """How far the wall clock has jumped."""

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now + self.jumped_seconds

    def monotonic(self) -> float:
        return self.now


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
    shortage: str = ""
    """Why the disk of the database has too little free space."""

    async def call(self, method: str, request: Any, deadline_seconds: float = 10.0) -> Any:
        return await rpc.call(getattr(self.stub, method), request, deadline_seconds=deadline_seconds)

    def request_id(self) -> str:
        return f"request-{next(self.requests)}"

    async def cycle(self, seconds: float = 0.0) -> None:
        """Advances the clock, and runs reconcile cycles until none is requested and no pod is being started.

        More than a few seconds look like an interruption of the orchestrator.
        """
        self.clock.now += seconds
        self.runtime.contacts.tick(self.clock.now)
        self.runtime.reconcile_requested.set()
        while self.runtime.reconcile_requested.is_set():
            self.runtime.reconcile_requested.clear()
            await self.reconciler.cycle()
            await asyncio.sleep(0)
            while self.reconciler.starting:
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

    async def pause(self, tournament_id: str, reason: str = "the node is needed") -> None:
        request = pb.PauseTournamentRequest(request_id=self.request_id(), tournament_id=tournament_id, reason=reason)
        await self.call("PauseTournament", request)

    async def resume(self, tournament_id: str) -> None:
        request = pb.ResumeTournamentRequest(request_id=self.request_id(), tournament_id=tournament_id)
        await self.call("ResumeTournament", request)

    async def evaluate(self, tournament_id: str) -> str:
        request = pb.CreateEvaluationRequest(request_id=self.request_id(), tournament_id=tournament_id, episodes=4)
        request.checkpoint.agent_id, request.checkpoint.manifest_digest = f"{tournament_id}-a0", DIGEST
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

    async def renew(self, assignment: pb.Assignment, pod: str = "", **progress: Any) -> pb.RenewAssignmentResponse:
        request = pb.RenewAssignmentRequest(
            assignment_id=assignment.assignment_id,
            lease_epoch=assignment.lease_epoch,
            progress=pb.Progress(**progress),
            lease_token=assignment.lease_token,
            pod_id=pod,
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
            **{"lease_token": assignment.lease_token} | fields,
        )
        await self.call("CompleteAssignment", request)

    async def fail(self, tournament_id: str, outcome: pb.Outcome.ValueType = pb.OUTCOME_AGENT_FAILED) -> None:
        """Assigns work to the first pod of a tournament and completes it with an error."""
        await self.complete(await self.assigned(f"{tournament_id}-p0"), outcome, message="loss is NaN")

    async def evaluation(self, evaluation_id: str) -> pb.GetEvaluationResponse:
        answer: pb.GetEvaluationResponse = await self.call(
            "GetEvaluation", pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        )
        return answer


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


async def _serve_leaderboard(leaderboard: FakeLeaderboard) -> rpc.Server:
    module, file = leaderboard_pb2_grpc, leaderboard_pb2.DESCRIPTOR
    services = [
        _service(name, file, module, leaderboard)
        for name in ("LeaderboardService", "GeneratorService", "UpdaterService")
    ]
    return await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), services, guard=Guard.of_anyone())


async def _restored(state: StateDatabase, clock: ManualClock, mesh_id: str) -> RuntimeState:
    runtime = RuntimeState(LEASE_SECONDS)
    await state.transact(lifecycle.cancel_running, "its mesh stopped", but_mesh_id=mesh_id)
    runtime.restore(await state.transact(load_saved_state), clock.monotonic())
    state.on_saved(runtime.cache.apply_saved)
    return runtime


def _tournaments(state: StateDatabase, runtime: RuntimeState, mesh_id: str, *, start_pods: bool) -> Tournaments:
    numbers = itertools.count()
    return Tournaments(
        state,
        runtime,
        mesh_id=mesh_id,
        start_pods=start_pods,
        random_bytes=lambda count: bytes([next(numbers)] * count),
    )


def _launcher(launcher: Launcher | None, pods: ExternalPods | None, capacity: list[Capacity]) -> Any:
    if pods:
        return ExternalLauncher(pods, ExternalOptions(9090))
    launched: Any = launcher or FakeLauncher()

    async def current_capacity() -> Capacity:
        return capacity[-1]

    launched.capacity = current_capacity
    return launched


@contextlib.asynccontextmanager
async def _open_mesh(
    database: Path,
    clock: ManualClock,
    *,
    launcher: Launcher | None = None,
    cores: float = 2.0,
    mesh_id: str = "",
    start_pods: bool = True,
    external: bool = False,
    lease_tokens: LeaseTokens | None = None,
    leaderboard: FakeLeaderboard | None = None,
    check_leads: Callable[[], None] = lambda: None,
) -> AsyncIterator[Mesh]:
    leaderboard = leaderboard or FakeLeaderboard()
    leaderboard_server = await _serve_leaderboard(leaderboard)
    state = StateDatabase.open(database, clock)
    runtime = await _restored(state, clock, mesh_id)
    client = LeaderboardClient(leaderboard_server.address, runtime.best.update, on_unknown=runtime.registered.discard)
    registration = Registration(runtime, client, clock)
    capacity = [Capacity(Resources(cores, 64 * GIB, 0), 64 * GIB)]
    pods = ExternalPods(state, runtime, clock) if external else None
    launched = _launcher(launcher, pods, capacity)
    assignments = Assignments(state, runtime, client, clock, external_pods=pods)
    servicer = OrchestratorServicer(
        _tournaments(state, runtime, mesh_id, start_pods=start_pods),
        Queries(state, runtime),
        assignments,
        runtime,
        clock,
        leaderboard_address=leaderboard_server.address,
        watch_pause_seconds=0.0,
        lease_tokens=lease_tokens,
        evaluations=Evaluations(state, runtime, clock),
        evaluation_epochs=EvaluationEpochs(state, runtime, clock),
        registration=registration,
    )
    limits = Limits(start_pods, terminate_seconds=20.0, kill_seconds=60.0)
    rules = external_pods.EXTERNAL_POD_RULES if pods else LAUNCHED_POD_RULES
    silence = (
        NEVER_SILENT
        if pods
        else SilenceLimits(
            *(SILENT_SECONDS, OPENING_SILENT_SECONDS, STARTING_SILENT_SECONDS, TOGETHER_SECONDS, ORPHANED_SECONDS)
        )
    )
    reconciler = Reconciler(
        *(state, runtime, client, launched, clock),
        limits=limits,
        period_seconds=0.01,
        rules=rules,
        silence=silence,
        registration=registration,
        check_leads=check_leads,
        find_shortage=lambda: opened.shortage,
    )
    service = _service("OrchestratorService", pb.DESCRIPTOR, pb_grpc, servicer)
    server = await rpc.Server.start(rpc.ServerConfig(grace_seconds=0.0), [service], guard=Guard.of_anyone())
    async with rpc.connect(server.address, pb.DESCRIPTOR) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        opened = Mesh(clock, state, runtime, launched, leaderboard, reconciler, assignments, servicer, capacity, stub)
        yield opened
    servicer.close()
    await server.drain()
    await reconciler.close()
    await client.close()
    await leaderboard_server.drain()
    state.close()


@pytest.fixture
def open_mesh(tmp_path: Path, clock: ManualClock) -> MeshFactory:
    """Opens an orchestrator on the database of this test; opening it again is a restart."""
    return functools.partial(_open_mesh, tmp_path / "orchestrator.sqlite", clock)


@pytest.fixture
async def mesh(open_mesh: MeshFactory) -> AsyncIterator[Mesh]:
    async with open_mesh() as opened:
        yield opened


@pytest.fixture
async def name(mesh: Mesh, spec: Callable[..., TournamentSpec]) -> str:
    """Creates a tournament with two pods, and returns its id."""
    created = await mesh.create(spec())
    await mesh.cycle()
    return created


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for socket paths."""
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)
