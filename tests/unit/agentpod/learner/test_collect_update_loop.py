"""The collect-update loop grants a slot to the workers before an update can read the memory."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import torch
from supervised_pod import SupervisedPod

from agentpod.compute_thread import ComputeThread
from agentpod.learner import collect_update_loop
from agentpod.learner.collect_update_loop import CollectUpdateLoop
from agentpod.liveness.activity import WARM_UP_TICKS
from agentpod.liveness.supervisor_actions import EXIT_STUCK
from agentpod.session.role_client import CollectedRollout
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class ExperienceSlots:
    """Records the operations on its slots, in order."""

    def __init__(self, notes):
        self.notes, self.granted = notes, 0

    def grant(self):
        self.granted += 1
        self.notes.append(f"grant {self.granted}")
        return self.granted

    def receive(self, grant):
        self.notes.append(f"receive {grant}")
        return grant

    def release(self, grant):
        self.notes.append(f"release {grant}")


class Roles:
    """Workers that fill every slot immediately."""

    def __init__(self, notes):
        self.experience, self.notes = ExperienceSlots(notes), notes
        self.ring = SimpleNamespace(publish=lambda flat, version: notes.append(f"publish {version}"), on_gpu=False)

    async def collect(self, grant, rollout):
        return CollectedRollout(grant, rollout, 8, [])


async def test_the_next_slot_is_granted_before_an_update_can_sample_the_memory():
    notes = []

    def update(experience):
        notes.append(f"update {experience}")
        return {}

    compute = ComputeThread()
    algorithm = SimpleNamespace(
        update=update, policy=SimpleNamespace(flat=torch.zeros(1)), network=SimpleNamespace(hidden_sizes=(8,))
    )
    stop = asyncio.get_running_loop().create_future()
    loop = CollectUpdateLoop(Roles(notes), compute, algorithm, SimpleNamespace(rollouts=0), stop, overlap=True)
    for more in (True, False):
        learned = await loop.step(lambda _, more=more: more)
        assert learned is not None
        await loop.publish()
    assert notes == [
        "grant 1",
        "receive 1",
        "grant 2",
        "update 1",
        "release 1",
        "publish 1",
        "receive 2",
        "update 2",
        "release 2",
        "publish 2",
    ]
    assert (learned.policy_lag, loop.rollouts) == (0, 2)
    compute.close()


async def test_updates_that_train_nothing_are_part_of_the_warm_up():
    """Of a long warm-up of a replay memory: the time of its updates says nothing about that of the first real one."""
    compute, phases = ComputeThread(), []

    def update(experience):
        phases.append(compute.activity.phase)
        return {"loss": 1.0} if len(phases) > 4 * WARM_UP_TICKS else {}

    algorithm = SimpleNamespace(update=update, network=SimpleNamespace(hidden_sizes=(8,)))
    stop = asyncio.get_running_loop().create_future()
    loop = CollectUpdateLoop(Roles([]), compute, algorithm, SimpleNamespace(rollouts=0), stop, overlap=False)
    for _ in range(5 * WARM_UP_TICKS + 1):
        assert await loop.step(lambda _: False)
    assert phases[:-1] == [pb.ROLE_PHASE_WARMING_UP] * 5 * WARM_UP_TICKS
    assert phases[-1] == pb.ROLE_PHASE_UPDATING
    compute.close()


@pytest.mark.parametrize(("on_gpu", "in_the_event_loop"), [(True, True), (False, False)])
async def test_the_event_loop_does_not_wait_while_a_policy_is_copied_from_a_gpu(on_gpu, in_the_event_loop):
    threads = []
    ring = SimpleNamespace(on_gpu=on_gpu, publish=lambda flat, version: threads.append(threading.current_thread()))
    roles = SimpleNamespace(ring=ring)
    algorithm = SimpleNamespace(policy=SimpleNamespace(flat=SimpleNamespace(is_cuda=True)))
    compute, stop = ComputeThread("cuda:0"), asyncio.get_running_loop().create_future()
    loop = CollectUpdateLoop(roles, compute, algorithm, SimpleNamespace(rollouts=0), stop, overlap=True)
    await loop.publish()
    assert [thread is threading.current_thread() for thread in threads] == [in_the_event_loop]
    compute.close()


async def test_a_leader_whose_policy_is_never_copied_from_the_gpu_exits(tmp_path):
    """Hung hardware: its event loop renews the lease, and without this it would keep the GPU."""
    compute, free = ComputeThread("cuda:0"), threading.Event()
    ring = SimpleNamespace(on_gpu=False, publish=lambda flat, version: free.wait(60))
    algorithm = SimpleNamespace(policy=SimpleNamespace(flat=SimpleNamespace(is_cuda=True)))
    stop = asyncio.get_running_loop().create_future()
    loop = CollectUpdateLoop(
        SimpleNamespace(ring=ring), compute, algorithm, SimpleNamespace(rollouts=0), stop, overlap=True
    )
    pod = SupervisedPod(tmp_path, activity=compute.activity)
    await pod.learned()
    publishing = asyncio.create_task(loop.publish())
    await asyncio.sleep(0)
    await pod.polls(11, steps=1)
    assert [stuck.progress.phase for stuck in pod.reported] == [pb.ROLE_PHASE_UPDATING]
    assert pod.exits == [EXIT_STUCK]
    free.set()
    await publishing
    compute.close()


async def test_a_rollout_in_memory_of_the_host_is_copied_to_the_gpu_by_the_compute_thread(monkeypatch):
    uploads = []

    def upload(rollout, device):
        uploads.append((device, threading.current_thread().name.partition("_")[0]))
        return {"uploaded": device}

    monkeypatch.setattr(collect_update_loop, "upload", upload)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    compute, updated = ComputeThread("cuda:1"), []
    algorithm = SimpleNamespace(
        update=lambda rollout: updated.append(rollout) or {}, network=SimpleNamespace(hidden_sizes=(8,))
    )
    loop = CollectUpdateLoop(
        Roles([]),
        compute,
        algorithm,
        SimpleNamespace(rollouts=0),
        asyncio.get_running_loop().create_future(),
        overlap=True,
        device="cuda:1",
    )
    await loop._update({"reward": torch.zeros(2)})
    assert uploads == [("cuda:1", "compute")]
    assert updated == [{"uploaded": "cuda:1"}]
    compute.close()
