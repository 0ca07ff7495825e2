"""Ownership passes by message: a slot is out once, a policy that is being read is not written."""

import pytest
import torch

from agentpod.buffer import POLICY, PolicyRing, RolloutSlots
from agentpod.rollout import Field
from podrace.errors import FailedPrecondition, ResourceExhausted
from podrace.tensors.memory import MemoryPlane


@pytest.fixture
def plane() -> MemoryPlane:
    return MemoryPlane()


def test_a_slot_is_out_once_and_comes_back(plane):
    slots = RolloutSlots(plane, "s", {"reward": Field("reward", (2, 3), torch.float32)}, 2)
    first, second = slots.take(), slots.take()
    assert first is not second
    with pytest.raises(ResourceExhausted):
        slots.take()
    slots.give_back(first)
    assert slots.take() is first
    slots.close()


def test_references_of_an_earlier_use_are_refused(plane):
    slots = RolloutSlots(plane, "s", {"reward": Field("reward", (2, 3), torch.float32)}, 1)
    slot = slots.take()
    stale = slot.refs()
    slots.give_back(slot)
    slots.take()
    with pytest.raises(FailedPrecondition):
        plane.open(stale)
    slots.close()


def test_a_policy_that_is_being_read_is_never_written(plane):
    ring = PolicyRing(plane, "s", 3)
    ring.publish(torch.full((3,), 1.0), 1)
    held = ring.hold()
    for version in range(2, 20):
        ring.publish(torch.full((3,), float(version)), version)
    assert held.version == 1
    assert plane.open([held.ref().tensor])[POLICY].tolist() == [1.0, 1.0, 1.0]
    ring.release(held)
    assert ring.hold().version == 19
    ring.close()


def test_more_readers_than_the_ring_is_made_for_are_told(plane):
    ring = PolicyRing(plane, "s", 1)
    for version in range(PolicyRing.SLOTS):
        ring.publish(torch.zeros(1), version)
        ring.hold()
    with pytest.raises(ResourceExhausted, match="being read"):
        ring.publish(torch.zeros(1), 99)
    ring.close()


def test_nothing_can_be_held_before_the_first_policy(plane):
    with pytest.raises(ResourceExhausted):
        PolicyRing(plane, "s", 1).hold()
