"""A tournament's own evaluator, in a process or at an address: what it scores, and what becomes of its faults."""

import asyncio
import contextlib
import math
import os
import re
import select
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import prometheus_client
import pytest
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.experience.slots import PolicyRing, PolicySlot
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.user_evaluator import Asked, CustomEvaluator, local_address
from agentpod.seeding import derive_generator
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import FailedPrecondition, Unavailable
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
    """As much of a pod as a custom evaluator sees: a policy that lies in a held slot."""

    def __init__(self, folder: Path) -> None:
        simulator = make("cartpole", 1)
        self.policy = Policy(simulator.observation_space, simulator.action_space, NETWORK)
        self.policy.initialize(derive_generator("cpu", 1, "initialize"))
        self._ring = PolicyRing(MemoryPlane(), "own", self.policy.flat.numel())
        self._ring.publish(self.policy.flat, 3)
        self.slot: PolicySlot = self._ring.hold()
        self.digest = digest(encode(self.policy.tensors(), {}))
        self.config = PodConfig("test-pod", "unix:o", "unix:l", "folder:///s", folder)
        self.now = 0.0
        self.made: list[CustomEvaluator] = []

    def custom(self, name: str, answer_seconds: float = 30.0) -> CustomEvaluator:
        made = CustomEvaluator(self.config, Asked(name, answer_seconds), clock=lambda: self.now)
        made.expect(ENVIRONMENT, [policy_message(NETWORK, self.policy.tensors())])
        self.made.append(made)
        return made

    async def score(self, custom: CustomEvaluator, seed: int = 7) -> Evaluation | None:
        return await custom.score([self.slot], episodes=4, seed=seed, greedy=True)


@pytest.fixture
async def pod(short_folder: Path) -> AsyncIterator[Pod]:
    found = Pod(short_folder)
    with lifeline.hold(found.config.leader_lifeline):
        yield found
        for custom in found.made:
            await custom.close()


_others: set[int] = set()
"""What ran before the test: helpers of multiprocessing, from tests of other files."""


def children() -> set[int]:
    """Processes that this test has started and that still run."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()} - _others


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    _others.update(children())
    yield
    assert not children()
    _others.clear()


# --- a function ----------------------------------------------------------------------------------------------------


ANSWERED = {
    1: "ZeroDivisionError: of nothing",
    2: "scorers:seeded called sys.exit(5)",
    3: "scorers:seeded returned a number that is not finite",
    4: "scorers:seeded returned 3 numbers for 4 episodes",
    5: "the policy was changed while it was scored",
}
"""What is said of those faults of `scorers.seeded` that leave its process as it was."""


async def test_a_function_scores_the_policy_that_was_asked_for_whatever_went_wrong_before(pod: Pod) -> None:
    custom = pod.custom(f"{SCORERS}:seeded")
    first = await pod.score(custom, seed=10)
    assert first is not None, custom.fault
    assert (first.evaluator, first.evaluator_fault, custom.fault) == (custom.asked.name, "", "")
    assert (first.policy_digest, first.seed, first.episodes) == (pod.digest, 10, 4)
    # Each step of CartPole is worth 1.
    assert first.mean_return == pytest.approx(10 * first.mean_length_steps)
    process = children()
    for seed, said in ANSWERED.items():
        before = faults()
        assert await pod.score(custom, seed) is None
        assert custom.fault.startswith(f"evaluator {SCORERS}:seeded: ")
        assert said in custom.fault
        assert faults() == before + 1
        pod.now += 1e6
    again = await pod.score(custom, seed=10)
    assert again is not None
    assert (again.mean_return, again.variance) == (first.mean_return, first.variance)
    assert custom.fault == ""
    assert children() == process, "a fault that was answered ends nothing"


async def test_a_function_that_crashes_or_hangs_is_named_and_asked_again_after_a_pause(pod: Pod) -> None:
    custom = pod.custom(f"{SCORERS}:seeded", answer_seconds=0.5)
    assert await pod.score(custom, seed=6) is None
    assert custom.fault == f"evaluator {SCORERS}:seeded: its process was ended by SIGSEGV"
    assert not children()
    pod.now = 9.9
    assert await pod.score(custom, seed=10) is None
    assert not children(), "it was asked during the pause"
    pod.now = 10.0
    assert await pod.score(custom, seed=7) is None
    assert "it took longer than evaluation.answer_duration = 0.5 s" in custom.fault
    assert not children(), "what hangs is still there"


async def test_a_function_that_is_called_off_goes_at_once(pod: Pod) -> None:
    custom = pod.custom(f"{SCORERS}:seeded")
    scoring = asyncio.create_task(pod.score(custom, seed=8))
    while not custom._session:
        await asyncio.sleep(0.01)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert not children()
    assert custom.fault == "", "whoever was called off has no fault"


@pytest.mark.parametrize("function", ["starting", "starting_and_crashing"])
async def test_what_a_function_has_started_goes_with_it(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    started = tmp_path / "child"
    monkeypatch.setenv("SCORERS_CHILD", str(started))
    scoring = asyncio.create_task(pod.score(pod.custom(f"{SCORERS}:{function}")))
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


async def test_a_process_that_ended_between_two_scores_is_started_anew(pod: Pod) -> None:
    custom = pod.custom(f"{SCORERS}:tenfold")
    first = await pod.score(custom)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    assert custom._process is not None
    assert custom._process.ended(10.0) == "its process was ended by SIGKILL"
    second = await pod.score(custom)
    assert first is not None
    assert second is not None, custom.fault
    assert second.mean_return == first.mean_return


# --- an address ----------------------------------------------------------------------------------------------------


class Stranger(EvaluatorServicer):
    """A right evaluator for one pod, whose answers can be changed on the way."""

    def __init__(self) -> None:
        super().__init__(Planes(GrpcPlane()), ComputeThread())
        self.changes: dict[str, object] = {}
        self.sessions: list[str] = []
        self.closed: list[str] = []
        self.error: Exception | None = None
        self.silent = False
        self.on_question: Callable[[], None] = lambda: None

    async def OpenEvaluator(self, request, context):
        self.sessions.append(request.session)
        response = await super().OpenEvaluator(request, context)
        return pb.OpenEvaluatorResponse(probe_sum=response.probe_sum + bool(self.changes.get("probe")))

    async def EvaluatePolicy(self, request, context):
        self.on_question()
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


async def served(stranger: Stranger, listen: str = "127.0.0.1:0") -> Server:
    service = Service(
        pb.DESCRIPTOR.services_by_name["EvaluatorService"],
        pb_grpc.add_EvaluatorServiceServicer_to_server,
        stranger,
    )
    return await Server.start(ServerConfig(listen=listen, grace_seconds=0.0), [service])


@pytest.fixture
async def stranger() -> AsyncIterator[tuple[Stranger, str]]:
    found = Stranger()
    server = await served(found)
    yield found, f"grpc://{server.address}"
    await server.drain()
    found._compute.close()


async def test_a_stranger_scores_over_the_plane_grpc_and_is_told_of_the_end(pod: Pod, stranger) -> None:
    servicer, name = stranger
    custom = pod.custom(name)
    evaluation = await pod.score(custom)
    assert evaluation is not None, custom.fault
    assert (evaluation.evaluator, evaluation.policy_digest, evaluation.episodes) == (name, pod.digest, 4)
    await custom.close()
    assert servicer.closed == servicer.sessions


async def test_sessions_of_two_pods_never_have_one_name(pod: Pod, stranger) -> None:
    servicer, name = stranger
    for _ in range(2):
        # The same pod, as it is started again after a kill.
        assert await pod.score(pod.custom(name)) is not None
    assert len(set(servicer.sessions)) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean_return": math.nan}, "mean_return = nan is not finite"),
        ({"variance": -1.0}, "variance = -1 is negative"),
        ({"episodes": 0}, "it scored 0 episodes instead of 4"),
        ({"episodes": 3}, "it scored 3 episodes instead of 4"),
        ({"policy_digest": "f" * 64}, "it scored another policy"),
        ({"probe": True}, "plane 'grpc' failed its self-test"),
    ],
)
async def test_nonsense_of_a_stranger_is_named(pod: Pod, stranger, changes, said) -> None:
    servicer, name = stranger
    servicer.changes = changes
    custom = pod.custom(name)
    assert await pod.score(custom) is None
    assert said in custom.fault
    # And it is heard again when it has come to reason.
    servicer.changes, pod.now = {}, 10.0
    assert await pod.score(custom) is not None


async def test_a_stranger_that_does_not_answer_is_named(pod: Pod, stranger) -> None:
    servicer, name = stranger
    servicer.silent = True
    custom = pod.custom(name, answer_seconds=0.2)
    assert await pod.score(custom) is None
    assert "longer than evaluation.answer_duration = 0.2 s" in custom.fault


@pytest.mark.parametrize(
    "error", [FailedPrecondition("who?", reason="ERROR_REASON_NOT_OPEN"), Unavailable("restarting")]
)
async def test_a_stranger_that_has_forgotten_the_session_is_opened_anew(pod: Pod, stranger, error) -> None:
    servicer, name = stranger
    custom = pod.custom(name)
    assert await pod.score(custom) is not None
    servicer.error = error
    assert await pod.score(custom) is not None, custom.fault
    assert len(servicer.sessions) == 2


async def test_a_stranger_that_goes_away_is_not_given_its_time_twice(pod: Pod, stranger) -> None:
    servicer, name = stranger
    servicer.error = Unavailable("restarting")
    servicer.on_question = lambda: setattr(pod, "now", 30.0)
    custom = pod.custom(name, answer_seconds=30.0)
    assert await pod.score(custom) is None
    assert "restarting" in custom.fault
    assert len(servicer.sessions) == 1


async def test_an_address_where_nobody_is_is_named(pod: Pod, monkeypatch) -> None:
    monkeypatch.setattr("agentpod.roles.user_evaluator.CONNECT_SECONDS", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        custom = CustomEvaluator(pod.config, Asked(f"grpc://127.0.0.1:{taken.getsockname()[1]}", 5.0))
        pod.made.append(custom)
        custom.expect(ENVIRONMENT, [policy_message(NETWORK, pod.policy.tensors())])
        assert await pod.score(custom) is None
    assert re.search(r"nobody answers at 127\.0\.0\.1:\d+$", custom.fault)


async def test_a_host_that_does_not_exist_is_named(pod: Pod) -> None:
    custom = pod.custom("grpc://no-such-host.invalid:1")
    assert await pod.score(custom) is None
    assert "there is no way to no-such-host.invalid:1" in custom.fault


def test_the_address_that_a_stranger_can_reach_is_the_one_the_way_there_begins_at() -> None:
    assert local_address("127.0.0.1:9") == "127.0.0.1"
    assert local_address("localhost:9") in ("127.0.0.1", "[::1]")


async def test_the_published_policy_is_out_of_a_strangers_reach(pod: Pod, stranger) -> None:
    _, name = stranger
    custom = pod.custom(name)
    before = pod.policy.flat.clone()
    assert await pod.score(custom) is not None
    custom._regions[0]["policy"].add_(1.0)
    assert torch.equal(pod.slot.region["policy"], before)


def faults() -> float:
    family = prometheus_client.REGISTRY.collect()
    return sum(
        sample.value
        for metric in family
        for sample in metric.samples
        if sample.name == "podrace_learner_evaluator_faults_total"
    )
