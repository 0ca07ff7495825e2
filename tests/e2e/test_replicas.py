"""Standbys take over from leaders that are killed or stopped, while a pod trains and nothing is lost."""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgresql_server import MISSING, PostgresqlServer, programs, running_server
from replicas import DEADLINE_SECONDS, SERVICES, ReplicatedMesh, replicated_mesh

from podrace import rpc
from podrace.access.token_file import operator_token
from podrace.errors import PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse
from podrace.tournament.v1 import tournament_pb2

# Cold: a signal must reach the very process that leads.
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.cold, pytest.mark.timeout(240)]
TAKEOVER_SECONDS = 15.0
CALL_SECONDS = 20.0
"""Deadline of a call: a busy machine starts a replica slowly."""
SPEC = {
    "environment": {"id": "cartpole", "count": 16},
    "algorithms": {"ppo": {}},
    "objective": {"wall_clock_duration": "1h"},
    "assignment": {"environment_steps": 100_000_000},
    "evaluation": {"episodes": 4, "every_environment_steps": 8192},
}


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServer]:
    if programs() is None:
        pytest.skip(MISSING)
    with running_server() as server:
        yield server


@pytest.fixture
def mesh(postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicatedMesh]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:
        monkeypatch.setenv("PODRACE_TOKEN_FILE", f"{folder}/access/token")
        with replicated_mesh(Path(folder), postgresql) as made:
            yield made


class Caller:
    """Calls both services by the addresses of all their replicas."""

    def __init__(self, orchestrator: Any, leaderboard: Any) -> None:
        self.orchestrator: Any = pb_grpc.OrchestratorServiceStub(orchestrator)
        self.leaderboard: Any = leaderboard_pb2_grpc.LeaderboardServiceStub(leaderboard)
        self.tournament_id = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, mesh: ReplicatedMesh) -> AsyncIterator["Caller"]:
        orchestrator, leaderboard = (mesh.addresses[service] for service in SERVICES)
        async with (
            rpc.connect(orchestrator, pb.DESCRIPTOR, token=operator_token(orchestrator)) as first,
            rpc.connect(leaderboard, leaderboard_pb2.DESCRIPTOR, token=operator_token(leaderboard)) as second,
        ):
            yield cls(first, second)

    async def create(self, request_id: str) -> str:
        request = pb.CreateTournamentRequest(request_id=request_id, spec=parse(SPEC, source="test"))
        created = await answered(lambda: rpc.call(self.orchestrator.CreateTournament, request, deadline_seconds=5.0))
        return str(created.tournament.tournament_id)

    async def tournament(self) -> tournament_pb2.Tournament:
        request = pb.GetTournamentRequest(tournament_id=self.tournament_id)
        answer = await answered(lambda: rpc.call(self.orchestrator.GetTournament, request, deadline_seconds=2.0))
        found: tournament_pb2.Tournament = answer.tournament
        return found

    async def candidates(self) -> set[str]:
        """Returns all submissions that were accepted."""
        request = leaderboard_pb2.ListCandidatesRequest(
            tournament_id=self.tournament_id, all_submissions=True, page_size=1000
        )
        answer = await answered(lambda: rpc.call(self.leaderboard.ListCandidates, request, deadline_seconds=2.0))
        return {one.candidate_id for one in answer.candidates}

    async def events(self) -> list[Any]:
        request = pb.ListEventsRequest(tournament_id=self.tournament_id, page_size=1000)
        answer = await answered(lambda: rpc.call(self.orchestrator.ListEvents, request, deadline_seconds=2.0))
        return list(answer.events)


async def answered(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeats a call until it is answered."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                return await call()
            except PodraceError:
                await asyncio.sleep(0.05)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.1)


async def trains_on(caller: Caller, steps: int = 0) -> None:
    """Waits until the pod has reported more than these steps, and has submitted another candidate."""
    known = await caller.candidates()

    async def progressed() -> bool:
        found = await caller.tournament()
        return found.environment_steps > steps and bool(await caller.candidates() - known)

    await until(progressed)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda one: one.name)
async def test_a_standby_takes_over_and_nothing_is_lost(
    mesh: ReplicatedMesh, fault: signal.Signals, record_property: Callable[[str, object], None]
) -> None:
    async with Caller.open(mesh) as caller:
        caller.tournament_id = await caller.create("first")
        pod = mesh.start_pod()
        await trains_on(caller)
        for service, call in (("orchestrator", caller.tournament), ("leaderboard", caller.candidates)):
            number, epoch = mesh.leader(service), mesh.epoch(service)
            known, steps = await caller.candidates(), (await caller.tournament()).environment_steps
            old = mesh.process(service, number)
            begin = time.monotonic()
            old.send_signal(fault)
            if fault != signal.SIGSTOP:
                await asyncio.to_thread(old.wait, DEADLINE_SECONDS)
            await call()
            seconds = time.monotonic() - begin
            print(f"{fault.name} of the {service}: answered after {seconds:.1f} s")
            record_property(f"{service}_seconds", round(seconds, 1))
            assert seconds < TAKEOVER_SECONDS
            assert mesh.epoch(service) == epoch + 1
            assert mesh.leader(service) != number
            assert known <= await caller.candidates()
            await trains_on(caller, steps)
            if fault == signal.SIGSTOP:
                # The former leader changes nothing, notices it, and ends, so that its supervisor starts it again.
                old.send_signal(signal.SIGCONT)
                assert await asyncio.to_thread(old.wait, DEADLINE_SECONDS) == 0
                assert mesh.epoch(service) == epoch + 1
            mesh.start_replica(service, number)
        assert await caller.create("first") == caller.tournament_id
        assert pod.poll() is None
        assigned = [event.message for event in await caller.events() if event.kind == "agent_assigned"]
        assert assigned
        assert all(message.endswith("(lease epoch 1)") for message in assigned), assigned
        assert (await caller.tournament()).failed_agents == 0


class Steady:
    """Makes unary calls of both services all the time, each with a deadline, and keeps what failed."""

    def __init__(self, caller: Caller) -> None:
        self._caller, self.failures, self.answered, self.longest = caller, list[str](), 0, 0.0

    async def run(self) -> None:
        await asyncio.gather(*(self._repeat(call) for call in (self._get, self._create, self._list)))

    async def _repeat(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            begin = time.monotonic()
            try:
                await call()
            except PodraceError as error:
                self.failures.append(f"{call.__name__} after {time.monotonic() - begin:.1f} s: {error.message}")
            self.answered += 1
            self.longest = max(self.longest, time.monotonic() - begin)
            await asyncio.sleep(0.02)

    def _get(self) -> Awaitable[Any]:
        request = pb.GetTournamentRequest(tournament_id=self._caller.tournament_id)
        return rpc.call(self._caller.orchestrator.GetTournament, request, deadline_seconds=CALL_SECONDS)

    def _create(self) -> Awaitable[Any]:
        request = pb.CreateTournamentRequest(request_id="first", spec=parse(SPEC, source="test"))
        return rpc.call(self._caller.orchestrator.CreateTournament, request, deadline_seconds=CALL_SECONDS)

    def _list(self) -> Awaitable[Any]:
        request = leaderboard_pb2.ListCandidatesRequest(tournament_id=self._caller.tournament_id)
        return rpc.call(self._caller.leaderboard.ListCandidates, request, deadline_seconds=CALL_SECONDS)


async def test_rolling_restarts_of_both_services_fail_no_unary_call(
    mesh: ReplicatedMesh, record_property: Callable[[str, object], None]
) -> None:
    async with Caller.open(mesh) as caller:
        caller.tournament_id = await caller.create("first")
        await answered(caller.candidates)
        steady = Steady(caller)
        calling = asyncio.create_task(steady.run())
        for service in SERVICES:
            # The one that waits first, as Kubernetes does with the higher number, then the leader.
            leader = mesh.leader(service)
            for number in (1 - leader, leader):
                process = mesh.process(service, number)
                process.terminate()
                await asyncio.to_thread(process.wait, DEADLINE_SECONDS)
                mesh.start_replica(service, number)
                await asyncio.to_thread(mesh.leader, service)
        before = steady.answered
        await until(lambda: _past(steady, before + 30))
        calling.cancel()
        print(f"{steady.answered} calls, the longest took {steady.longest:.1f} s")
        record_property("longest_seconds", round(steady.longest, 1))
        assert not steady.failures


async def _past(steady: Steady, count: int) -> bool:
    return steady.answered > count
