"""The memory of opponents is freed when the last call that reads it has ended."""

import pytest
import torch

from agentpod.experience.slots import POLICY
from agentpod.models.policy import NetworkSpec
from agentpod.session.opponents import OpponentPolicy, OpponentSlots
from podrace.errors import PodraceError
from podrace.tensor_transport.memory import MemoryPlane


def test_opponents_are_copied_and_named() -> None:
    plane, flat = MemoryPlane(), torch.arange(3.0)
    slots = OpponentSlots(plane, "s", [OpponentPolicy(NetworkSpec(hidden_sizes=(4,)), flat, 7, "abc")])
    flat += 1
    with slots.reading() as (message,):
        assert plane.open([message.ref.tensor])[POLICY].tolist() == [0.0, 1.0, 2.0]
        assert (message.candidate_id, message.ref.policy_version) == ("abc", 7)
        assert list(message.policy.hidden_sizes) == [4]


def test_retired_opponents_stay_readable_until_the_last_reader_has_ended() -> None:
    plane = MemoryPlane()
    slots = OpponentSlots(plane, "s", [OpponentPolicy(NetworkSpec(), torch.zeros(2))])
    with slots.reading() as (message,):
        with slots.reading():
            slots.retire()
        plane.open([message.ref.tensor])
    with pytest.raises(PodraceError):
        plane.open([message.ref.tensor])


def test_after_retired_opponents_the_next_tournament_has_none() -> None:
    """Its simulator may know no opponents, and the memory is free."""
    policies = [OpponentPolicy(NetworkSpec(), torch.zeros(2)), None]
    slots = OpponentSlots(MemoryPlane(), "s", policies)
    with slots.reading() as messages:
        slots.retire()
        assert len(messages) == 2
    with slots.reading() as messages:
        assert not messages


def test_without_opponents_nothing_is_allocated() -> None:
    slots = OpponentSlots(MemoryPlane(), "s", ())
    with slots.reading() as messages:
        assert not messages
    slots.retire()
