"""Tests slots and the policy ring: a slot is granted once, and a policy is not overwritten while it is read."""

import pytest
import torch

from agentpod.experience.memory_spec import MemorySpec
from agentpod.experience.replay_layout import replay_fields
from agentpod.experience.rollout import Field
from agentpod.experience.slots import POLICY, PolicyRing, ReplaySlots, RolloutSlots
from podrace.errors import FailedPrecondition, ResourceExhausted
from podrace.tensor_transport.memory import MemoryPlane
from simulators.base import Space


@pytest.fixture
def plane() -> MemoryPlane:
    return MemoryPlane()


def test_a_slot_is_granted_once_and_again_after_its_release(plane):
    slots = RolloutSlots(plane, "s", {"reward": Field("reward", (2, 3), torch.float32)}, 2)
    first, second = slots.grant(), slots.grant()
    assert first is not second
    with pytest.raises(ResourceExhausted):
        slots.grant()
    slots.release(first)
    assert slots.grant() is first
    slots.close()


def test_references_of_a_previous_grant_are_refused(plane):
    slots = RolloutSlots(plane, "s", {"reward": Field("reward", (2, 3), torch.float32)}, 1)
    grant = slots.grant()
    stale = grant.region.refs()
    slots.release(grant)
    slots.grant()
    with pytest.raises(FailedPrecondition):
        plane.open(stale)
    slots.close()


def test_lost_slots_are_reclaimed(plane):
    slots = RolloutSlots(plane, "s", {"reward": Field("reward", (2, 3), torch.float32)}, 2)
    slots.grant()
    slots.receive(slots.grant())
    slots.reclaim()
    assert slots.grant() is not slots.grant()
    slots.close()


def replay_slots(plane):
    fields = replay_fields(Space("continuous", (3,), torch.float32), Space("discrete", (), torch.int64, n=2), 6, 4)
    return ReplaySlots(plane, "s", fields, MemorySpec(horizon=2, replay_capacity=24), "cpu")


def test_a_replay_buffer_that_cannot_be_made_frees_its_memory(plane, monkeypatch):
    """The GPU of the learner may have too little memory for the copy, which is found out last."""

    def refuse(*_, **__):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("agentpod.experience.slots.ReplayBuffer", refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        replay_slots(plane)
    assert not plane._blocks


def test_a_worker_writes_where_the_learner_samples(plane):
    slots = replay_slots(plane)
    grant = slots.grant()
    plane.open(grant.region.refs())["reward"][grant.first_row : grant.first_row + 2] = 7.0
    replay = slots.receive(grant)
    slots.release(grant)
    assert replay.sample(5, 1, 0.9, torch.Generator()).reward.tolist() == [7.0] * 5
    slots.close()


def test_references_to_a_lost_segment_are_refused_and_received_segments_stay(plane):
    slots = replay_slots(plane)
    slots.receive(slots.grant())
    lost = slots.grant()
    stale = lost.region.refs()
    slots.reclaim()
    with pytest.raises(FailedPrecondition):
        plane.open(stale)
    assert slots.grant().first_row == lost.first_row
    assert slots.replay.size == 8
    slots.close()


def test_a_policy_is_never_overwritten_while_it_is_read(plane):
    ring = PolicyRing(plane, "s", 3)
    ring.publish(torch.full((3,), 1.0), 1)
    held = ring.hold()
    for version in range(2, 20):
        ring.publish(torch.full((3,), float(version)), version)
    assert held.version == 1
    assert plane.open([held.ref().tensor])[POLICY].tolist() == [1.0, 1.0, 1.0]
    held.release()
    assert ring.hold().version == 19
    ring.close()


def test_too_many_readers_of_the_ring_are_refused(plane):
    ring = PolicyRing(plane, "s", 1)
    for version in range(PolicyRing.SLOTS):
        ring.publish(torch.zeros(1), version)
        ring.hold()
    with pytest.raises(ResourceExhausted, match="being read"):
        ring.publish(torch.zeros(1), 99)
    ring.close()


def test_a_ring_that_does_not_fit_frees_its_memory(plane, monkeypatch):
    create, room = plane.create, iter(range(PolicyRing.SLOTS - 1))

    def create_while_there_is_room(name, specs):
        if next(room, None) is None:
            raise ResourceExhausted("full")
        return create(name, specs)

    monkeypatch.setattr(plane, "create", create_while_there_is_room)
    with pytest.raises(ResourceExhausted, match="full"):
        PolicyRing(plane, "s", 3)
    assert not plane._blocks


def test_hold_is_refused_before_the_first_policy(plane):
    with pytest.raises(ResourceExhausted):
        PolicyRing(plane, "s", 1).hold()
