"""Workers and evaluators release what they opened for a caller that failed, stopped waiting or was cancelled."""

import asyncio
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.experience.rollout import rollout_fields
from agentpod.experience.slots import PolicyRing, RolloutSlots
from agentpod.experience.staging import Staging
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.evaluator import EvaluatorServicer
from agentpod.roles.worker import WorkerServicer
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import (
    ROLE_PHASE_COLLECTING,
    ROLE_PHASE_IDLE,
    ROLE_PHASE_WAITING,
    RolePhase,
)
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import make
from simulators.wrappers.wrapper import Wrapper


class Counted(Wrapper):
    """A simulator that records whether it is open."""

    def __init__(self, living: set["Counted"], environment: str) -> None:
        super().__init__(make("pendulum" if environment == "pendulum" else "cartpole", 2))
        self._living = living
        living.add(self)

    def close(self) -> None:
        super().close()
        self._living.remove(self)


class Role:
    """A worker or an evaluator whose servicer is called directly."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.plane, self.compute = kind, MemoryPlane(), ComputeThread()
        self.servicer: Any = {"worker": WorkerServicer, "evaluator": EvaluatorServicer}[kind](
            Planes(self.plane), self.compute
        )
        self.living: set[Counted] = set()
        self.free = threading.Event()
        self.free.set()
        monkeypatch.setattr(
            f"agentpod.roles.{kind}.make_simulator",
            lambda environment, *_: self.free.wait(10) and Counted(self.living, environment.id),
        )

    async def open(self, session: str, head: str = "stochastic", environment: str = "cartpole") -> Any:
        probe = self.plane.create(f"{session}_probe", [PROBE_SPEC])
        fields = {
            "session": session,
            "environment": EnvironmentSpec(id=environment, count=2),
            "policy": policy_message(NetworkSpec(hidden_sizes=(4,), head=head)),
            "probe": probe.refs()[0],
        }
        try:
            if self.kind == "worker":
                return await self.servicer.OpenWorker(pb.OpenWorkerRequest(horizon=4, **fields), None)
            return await self.servicer.OpenEvaluator(pb.OpenEvaluatorRequest(**fields), None)
        finally:
            probe.close()

    async def close(self, session: str) -> None:
        if self.kind == "worker":
            await self.servicer.CloseWorker(pb.CloseWorkerRequest(session=session), None)
        else:
            await self.servicer.CloseEvaluator(pb.CloseEvaluatorRequest(session=session), None)

    async def work(self, session: str) -> Any:
        """Requests a rollout or an evaluation with a policy that cannot be read."""
        policy = pb.PolicyRef(policy_version=1)
        policy.tensor.plane_uri = "memory:gone"
        if self.kind == "worker":
            request = pb.CollectRolloutRequest(session=session, policy=policy)
            return await self.servicer.CollectRollout(request, None)
        return await self.servicer.EvaluatePolicy(
            pb.EvaluatePolicyRequest(session=session, policy=policy, episodes=2), None
        )


@pytest.fixture(params=["worker", "evaluator"])
def role(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Role]:
    made = Role(request.param, monkeypatch)
    yield made
    made.compute.close()


async def test_a_role_has_one_simulator_at_a_time_and_none_after_close(role: Role) -> None:
    for number, environment in enumerate(("cartpole", "cartpole", "another")):
        await role.open(f"s{number}", environment=environment)
        assert len(role.living) == 1
    await role.close("s1")
    assert len(role.living) == 1, "that session had already ended"
    await role.close("s2")
    assert not role.living


async def test_a_policy_that_cannot_act_in_the_environment_leaves_no_simulator_open(role: Role) -> None:
    with pytest.raises(InvalidArgument):
        await role.open("s", head="values", environment="pendulum")
    assert not role.living
    await role.open("t")
    assert len(role.living) == 1


async def test_a_simulator_opened_for_a_cancelled_call_is_closed_by_the_next_call(role: Role) -> None:
    role.free.clear()
    opening = asyncio.create_task(role.open("s"))
    for _ in range(20):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    role.free.set()
    await role.open("t", environment="another")
    assert len(role.living) == 1
    await role.close("t")
    assert not role.living


async def test_of_two_sessions_opened_at_once_only_one_has_a_simulator(role: Role) -> None:
    await asyncio.gather(role.open("s"), role.open("t", environment="another"))
    assert len(role.living) == 1


async def test_work_cancelled_while_it_waited_for_the_compute_thread_maps_no_memory(role: Role, monkeypatch) -> None:
    await role.open("s")
    opened: list[object] = []
    monkeypatch.setattr(role.plane, "open", lambda refs: opened.append(refs) or {})
    busy = threading.Event()
    first = asyncio.create_task(role.compute.run(busy.wait, 10))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(role.work("s"))
    for _ in range(20):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    busy.set()
    await first
    await role.compute.run(lambda: None)
    assert not opened


class CollectingWorker(Role):
    """A worker that has collected one rollout, so that it is past its warm-up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("worker", monkeypatch)
        simulator = make("cartpole", 2)
        spaces = simulator.observation_space, simulator.action_space
        policy = Policy(*spaces, NetworkSpec(hidden_sizes=(4,)))
        self.ring = PolicyRing(self.plane, "policy", policy.flat.numel())
        self.ring.publish(policy.flat, 1)
        self.region = RolloutSlots(self.plane, "s", rollout_fields(*spaces, 4, 2), 1).grant().region

    async def collect(self) -> None:
        slot = pb.RolloutSlot(tensors=self.region.refs())
        request = pb.CollectRolloutRequest(session="s", slot=slot, policy=self.ring.hold().ref())
        await self.servicer.CollectRollout(request, None)

    async def phase(self) -> RolePhase.ValueType:
        return (await self.servicer.GetWorker(pb.GetWorkerRequest(), None)).progress.phase


@pytest.mark.parametrize("copies", [True, False])
async def test_a_worker_pushes_its_rollout_before_it_replies_on_every_plane(
    monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    """The plane `cuda` copies nothing, and waits for the worker's work on the GPU when it pushes."""
    worker = CollectingWorker(monkeypatch)
    await worker.open("s")
    refs, pushed = worker.region.refs(), list[Any]()

    async def push(refs: Any, boxes: Any) -> None:
        pushed.append((refs, sorted(boxes), float(worker.region["reward"].sum()), await worker.phase()))

    monkeypatch.setattr(worker.plane, "push", push)
    monkeypatch.setattr(worker.plane, "copies", copies)
    await worker.collect()
    phase = ROLE_PHASE_WAITING if copies else ROLE_PHASE_COLLECTING
    assert pushed == [(refs, sorted(ref.spec.name for ref in refs), 8.0, phase)]
    worker.compute.close()


@pytest.mark.parametrize("hanging", ["finish_copies", "written_boxes"])
async def test_a_worker_that_waits_for_a_gpu_is_collecting_and_not_idle(
    monkeypatch: pytest.MonkeyPatch, hanging: str
) -> None:
    worker, hung, free = CollectingWorker(monkeypatch), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang(*_: Any) -> dict[str, Any]:
        loop.call_soon_threadsafe(hung.set)
        free.wait(60)
        return {}

    await worker.open("s")
    if hanging == "finish_copies":
        monkeypatch.setattr(Staging, "copy_to", lambda self, own: hang)
    else:
        monkeypatch.setattr(worker.plane, "copies", True)
        monkeypatch.setattr("agentpod.roles.worker.written_boxes", hang)
    collecting = asyncio.create_task(worker.collect())
    await asyncio.wait_for(hung.wait(), 30)
    assert await worker.phase() == ROLE_PHASE_COLLECTING
    free.set()
    await collecting
    assert await worker.phase() == ROLE_PHASE_IDLE
    worker.compute.close()


class SlicedEvaluator(Role):
    """An evaluator whose evaluations have a slice for every step, as on a GPU that is slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("evaluator", monkeypatch)
        simulator = make("cartpole", 2)
        policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec(hidden_sizes=(4,)))
        policy.initialize(torch.Generator().manual_seed(1))
        self.ring = PolicyRing(self.plane, "test", policy.flat.numel())
        self.ring.publish(policy.flat, 1)

    async def open_sliced(self, slice_seconds: float) -> None:
        await self.open("s")
        self.servicer._session._slice_seconds = slice_seconds

    async def evaluated(self, seed: int) -> Any:
        request = pb.EvaluatePolicyRequest(session="s", policy=self.ring.hold().ref(), episodes=5, seed=seed)
        return (await self.servicer.EvaluatePolicy(request, None)).evaluation


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlicedEvaluator]:
    made = SlicedEvaluator(monkeypatch)
    yield made
    made.compute.close()


async def test_other_work_runs_between_the_slices_of_an_evaluation_and_scores_are_the_same(
    sliced: SlicedEvaluator,
) -> None:
    await sliced.open_sliced(math.inf)
    whole = [await sliced.evaluated(seed) for seed in (1, 2)]
    await sliced.open_sliced(0.0)
    evaluating = asyncio.gather(sliced.evaluated(1), sliced.evaluated(2))
    updates = 0
    while not evaluating.done():
        assert await sliced.compute.run(torch.is_grad_enabled), "a mode of the evaluation is left in the thread"
        updates += 1
    found = await evaluating
    assert updates > 10
    for one, other in zip(whole, found, strict=True):
        assert list(one.episode_returns) == list(other.episode_returns)
        assert one.policy_digest == other.policy_digest


async def test_an_evaluation_whose_session_is_closed_between_two_slices_ends(sliced: SlicedEvaluator) -> None:
    await sliced.open_sliced(0.0)
    evaluating = asyncio.create_task(sliced.evaluated(1))
    while not sliced.servicer._turn.locked():
        await asyncio.sleep(0)
    await sliced.close("s")
    assert not sliced.living
    with pytest.raises(FailedPrecondition, match="closed during the evaluation"):
        await evaluating
