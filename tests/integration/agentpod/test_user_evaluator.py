"""A tournament's evaluator plugin, as a function and as a service: its scores, and how its failures are handled."""

import asyncio
import contextlib
import math
import os
import re
import select
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import prometheus_client
import pytest
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.experience.slots import PolicyRing, PolicySlot
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.evaluation_host import EvaluationHost
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.user_evaluator import UserEvaluator, UserEvaluatorSettings, local_address
from agentpod.seeding import derive_generator
from podrace.access.guard import Guard
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import FailedPrecondition, Unavailable
from podrace.limits.config import EVERYTHING
from podrace.plugins.child import ChildConnection
from podrace.processes import lifeline
from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor_transport.codec import digest, encode
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import make

SCORERS = "python:tests.integration.agentpod.scorers"
ENVIRONMENT = EnvironmentSpec(id="cartpole", count=2)
NETWORK = NetworkSpec(hidden_sizes=(4,))


class Pod:
    """The part of a pod that an evaluator plugin needs: a policy in a held slot."""

    def __init__(self, folder: Path) -> None:
        simulator = make("cartpole", 1)
        self.policy = Policy(simulator.observation_space, simulator.action_space, NETWORK)
        self.policy.initialize(derive_generator("cpu", 1, "initialize"))
        self._ring = PolicyRing(MemoryPlane(), "own", self.policy.flat.numel())
        self._ring.publish(self.policy.flat, 3)
        self.slot: PolicySlot = self._ring.hold()
        self.digest = digest(encode(self.policy.tensors(), {}))
        self.config = PodConfig("test-pod", "unix:o", "unix:l", "folder:///s", folder, allow=EVERYTHING)
        self.now = 0.0
        self.made: list[UserEvaluator] = []

    def evaluator(self, name: str, answer_seconds: float = 30.0) -> UserEvaluator:
        made = UserEvaluator(self.config, UserEvaluatorSettings(name, answer_seconds), clock=lambda: self.now)
        made.expect(ENVIRONMENT, [policy_message(NETWORK, self.policy.tensors())])
        self.made.append(made)
        return made

    async def score(self, evaluator: UserEvaluator, seed: int = 7) -> Evaluation | None:
        return await evaluator.score([self.slot], episodes=4, seed=seed, greedy=True)


@pytest.fixture
async def pod(short_folder: Path) -> AsyncIterator[Pod]:
    found = Pod(short_folder)
    with lifeline.hold(found.config.leader_lifeline):
        yield found
        for evaluator in found.made:
            await evaluator.close()


_others: set[int] = set()
"""Processes that ran before the test: helpers of multiprocessing, from tests of other files."""


def children() -> set[int]:
    """Running processes that this test started."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        # A thread that has just ended has no file any more.
        with contextlib.suppress(FileNotFoundError):
            found.update(int(pid) for pid in thread.read_text().split())
    return found - _others


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    _others.update(children())
    yield
    assert not children()
    _others.clear()


# --- a function ----------------------------------------------------------------------------------------------------


ANSWERED = {
    1: "the function raised ZeroDivisionError: of nothing",
    2: "the function raised SystemExit: 5",
    3: "the function returned a number that is not finite",
    4: "the function returned 3 numbers for 4 episodes",
    5: "the policy was changed while it was scored: an evaluation function must not modify it",
}
"""The failures of `scorers.seeded` after which its process keeps running, by seed."""


async def test_a_function_scores_the_requested_policy_after_any_failure(pod: Pod) -> None:
    evaluator = pod.evaluator(f"{SCORERS}:seeded")
    first = await pod.score(evaluator, seed=10)
    assert first is not None, evaluator.fault
    assert (first.evaluator, first.evaluator_fault, evaluator.fault) == (evaluator.settings.address, "", "")
    assert (first.policy_digest, first.seed, first.episodes) == (pod.digest, 10, 4)
    # Each step of CartPole is worth 1.
    assert first.mean_return == pytest.approx(10 * first.mean_length_steps)
    process = children()
    for seed, problem in ANSWERED.items():
        before = faults()
        assert await pod.score(evaluator, seed) is None
        assert evaluator.fault == f"evaluator {SCORERS}:seeded: {problem}"
        assert faults() == before + 1
        pod.now += 1e6
    again = await pod.score(evaluator, seed=10)
    assert again is not None
    assert (again.mean_return, again.variance) == (first.mean_return, first.variance)
    assert evaluator.fault == ""
    assert children() == process, "the process was killed although it had answered"


async def test_a_function_that_crashes_or_hangs_is_reported_and_paused_after_the_third_time(pod: Pod) -> None:
    evaluator = pod.evaluator(f"{SCORERS}:seeded", answer_seconds=0.5)
    for _ in range(2):
        assert await pod.score(evaluator, seed=6) is None
        assert evaluator.fault == f"evaluator {SCORERS}:seeded: its process was killed by SIGSEGV"
        assert not children()
    assert await pod.score(evaluator, seed=7) is None
    assert evaluator.fault == f"evaluator {SCORERS}:seeded: no answer within 0.5 s"
    assert not children(), "the process that hangs still runs"
    pod.now = 9.9
    assert await pod.score(evaluator, seed=10) is None
    assert not children(), "it was called during the pause"
    paused = "paused after 3 failures in a row; last failure: no answer within 0.5 s"
    assert evaluator.fault == f"evaluator {SCORERS}:seeded: {paused}"
    pod.now = 10.0
    assert await pod.score(evaluator, seed=10) is not None
    assert evaluator.fault == ""


async def test_a_function_of_an_isolated_pod_runs_in_a_child_of_the_evaluators_process(pod: Pod) -> None:
    pod.config = replace(pod.config, isolated=True)
    host = await EvaluationHost.start(pod.config)
    try:
        evaluator = pod.evaluator(f"{SCORERS}:seeded")
        assert not children(), "the leader starts no process"
        first = await pod.score(evaluator, seed=10)
        assert first is not None, evaluator.fault
        # Its process crashes; the next evaluation opens a session in another one.
        assert await pod.score(evaluator, seed=6) is None
        assert evaluator.fault == f"evaluator {SCORERS}:seeded: its process was killed by SIGSEGV"
        again = await pod.score(evaluator, seed=10)
        assert again is not None, evaluator.fault
        assert again.mean_return == first.mean_return
        for process in children():
            os.kill(process, signal.SIGKILL)
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        # It exited between two evaluations, which is no failure.
        assert await pod.score(evaluator, seed=10) is not None, evaluator.fault
    finally:
        await host.close()


async def test_the_process_of_a_function_is_killed_when_its_evaluation_is_cancelled(pod: Pod) -> None:
    evaluator = pod.evaluator(f"{SCORERS}:seeded")
    scoring = asyncio.create_task(pod.score(evaluator, seed=8))
    while not evaluator._session:
        await asyncio.sleep(0.01)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert not children()
    assert evaluator.fault == "", "a cancelled evaluation is no failure"


@pytest.mark.parametrize("function", ["starting", "starting_and_crashing"])
async def test_the_processes_of_a_function_are_killed_with_it(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    started = tmp_path / "child"
    monkeypatch.setenv("SCORERS_CHILD", str(started))
    scoring = asyncio.create_task(pod.score(pod.evaluator(f"{SCORERS}:{function}")))
    while not started.exists():
        await asyncio.sleep(0.01)
    child = os.pidfd_open(int(started.read_text()))
    try:
        if function == "starting":
            scoring.cancel()
        await asyncio.wait([scoring])
        assert select.select([child], [], [], 5.0)[0], "it outlives the function"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


async def test_a_process_that_exited_between_two_scores_is_started_again(pod: Pod) -> None:
    evaluator = pod.evaluator(f"{SCORERS}:tenfold")
    first = await pod.score(evaluator)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    assert isinstance(evaluator._connection, ChildConnection)
    assert evaluator._connection.process is not None
    assert await evaluator._connection.process.wait(10.0) == -signal.SIGKILL
    second = await pod.score(evaluator)
    assert first is not None
    assert second is not None, evaluator.fault
    assert second.mean_return == first.mean_return


# --- an address ----------------------------------------------------------------------------------------------------


class ThirdPartyEvaluator(EvaluatorServicer):
    """A correct evaluator for one pod, whose answers a test can change."""

    def __init__(self) -> None:
        super().__init__(Planes(GrpcPlane()), ComputeThread())
        self.changes: dict[str, object] = {}
        self.sessions: list[str] = []
        self.closed: list[str] = []
        self.error: Exception | None = None
        self.silent = False
        self.on_request: Callable[[], None] = lambda: None

    async def OpenEvaluator(self, request, context):
        self.sessions.append(request.session)
        response = await super().OpenEvaluator(request, context)
        return pb.OpenEvaluatorResponse(probe_sum=response.probe_sum + bool(self.changes.get("probe")))

    async def EvaluatePolicy(self, request, context):
        self.on_request()
        if self.silent:
            await asyncio.Event().wait()
        error, self.error = self.error, None
        if error:
            raise error
        response = await super().EvaluatePolicy(request, context)
        for name, value in self.changes.items():
            if name != "probe":
                setattr(response.evaluation, name, value)
        return response

    async def CloseEvaluator(self, request, context):
        self.closed.append(request.session)
        return await super().CloseEvaluator(request, context)


async def served(servicer: ThirdPartyEvaluator, listen: str = "127.0.0.1:0") -> Server:
    service = Service(
        pb.DESCRIPTOR.services_by_name["EvaluatorService"],
        pb_grpc.add_EvaluatorServiceServicer_to_server,
        servicer,
    )
    return await Server.start(ServerConfig(listen=listen, grace_seconds=0.0), [service], guard=Guard.of_anyone())


@pytest.fixture
async def third_party() -> AsyncIterator[tuple[ThirdPartyEvaluator, str]]:
    found = ThirdPartyEvaluator()
    server = await served(found)
    yield found, f"grpc://{server.address}"
    await server.drain()
    found._compute.close()


async def test_a_service_scores_over_the_plane_grpc_and_its_session_is_closed(pod: Pod, third_party) -> None:
    servicer, name = third_party
    evaluator = pod.evaluator(name)
    evaluation = await pod.score(evaluator)
    assert evaluation is not None, evaluator.fault
    assert (evaluation.evaluator, evaluation.policy_digest, evaluation.episodes) == (name, pod.digest, 4)
    await evaluator.close()
    assert servicer.closed == servicer.sessions


async def test_the_sessions_of_two_pods_have_different_names(pod: Pod, third_party) -> None:
    servicer, name = third_party
    for _ in range(2):
        # The same pod, started again after it was killed.
        assert await pod.score(pod.evaluator(name)) is not None
    assert len(set(servicer.sessions)) == 2


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"mean_return": math.nan}, "mean_return = nan is not finite"),
        ({"variance": -1.0}, "variance = -1 is negative"),
        ({"episodes": 0}, "it scored 0 episodes instead of 4"),
        ({"episodes": 3}, "it scored 3 episodes instead of 4"),
        ({"policy_digest": "f" * 64}, "it scored another policy"),
        ({"probe": True}, "plane 'grpc' failed its self-test"),
    ],
)
async def test_an_invalid_answer_of_a_service_is_reported(pod: Pod, third_party, changes, fault) -> None:
    servicer, name = third_party
    servicer.changes = changes
    evaluator = pod.evaluator(name)
    assert await pod.score(evaluator) is None
    assert fault in evaluator.fault
    # Its next valid answer is used.
    servicer.changes, pod.now = {}, 10.0
    assert await pod.score(evaluator) is not None


async def test_a_service_that_does_not_answer_is_reported(pod: Pod, third_party) -> None:
    servicer, name = third_party
    servicer.silent = True
    evaluator = pod.evaluator(name, answer_seconds=0.2)
    assert await pod.score(evaluator) is None
    assert evaluator.fault == f"evaluator {name}: no answer within 0.2 s"


@pytest.mark.parametrize(
    "error", [FailedPrecondition("who?", reason="ERROR_REASON_NOT_OPEN"), Unavailable("restarting")]
)
async def test_a_service_that_lost_the_session_gets_a_new_one(pod: Pod, third_party, error) -> None:
    servicer, name = third_party
    evaluator = pod.evaluator(name)
    assert await pod.score(evaluator) is not None
    servicer.error = error
    assert await pod.score(evaluator) is not None, evaluator.fault
    assert len(servicer.sessions) == 2


async def test_a_retry_after_a_restart_has_only_the_time_that_remains(pod: Pod, third_party) -> None:
    servicer, name = third_party
    servicer.error = Unavailable("restarting")
    servicer.on_request = lambda: setattr(pod, "now", 30.0)
    evaluator = pod.evaluator(name, answer_seconds=30.0)
    assert await pod.score(evaluator) is None
    assert "restarting" in evaluator.fault
    assert len(servicer.sessions) == 1


async def test_an_unreachable_address_is_reported(pod: Pod, monkeypatch) -> None:
    monkeypatch.setattr("agentpod.roles.user_evaluator.CONNECT_SECONDS", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        evaluator = UserEvaluator(pod.config, UserEvaluatorSettings(address, 5.0))
        pod.made.append(evaluator)
        evaluator.expect(ENVIRONMENT, [policy_message(NETWORK, pod.policy.tensors())])
        assert await pod.score(evaluator) is None
    assert re.search(r"unreachable: no connection to 127\.0\.0\.1:\d+ within 0\.2 s$", evaluator.fault)


async def test_a_host_that_does_not_exist_is_reported(pod: Pod, monkeypatch) -> None:
    monkeypatch.setattr("agentpod.roles.user_evaluator.CONNECT_SECONDS", 0.2)
    evaluator = pod.evaluator("grpc://no-such-host.invalid:1")
    assert await pod.score(evaluator) is None
    assert "unreachable: no connection to no-such-host.invalid:1" in evaluator.fault
    with pytest.raises(Unavailable, match=r"no route to no-such-host\.invalid:1"):
        local_address("no-such-host.invalid:1")


def test_the_plane_is_served_at_the_address_from_which_the_service_is_reached() -> None:
    assert local_address("127.0.0.1:9") == "127.0.0.1"
    assert local_address("localhost:9") in ("127.0.0.1", "[::1]")


async def test_a_service_cannot_change_the_published_policy(pod: Pod, third_party) -> None:
    _, name = third_party
    evaluator = pod.evaluator(name)
    before = pod.policy.flat.clone()
    assert await pod.score(evaluator) is not None
    evaluator._regions[0]["policy"].add_(1.0)
    assert torch.equal(pod.slot.region["policy"], before)


def faults() -> float:
    family = prometheus_client.REGISTRY.collect()
    return sum(
        sample.value
        for metric in family
        for sample in metric.samples
        if sample.name == "podrace_learner_evaluator_faults_total"
    )
