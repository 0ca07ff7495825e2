"""Tests the set of planes of a process."""

import errno
from pathlib import Path

import pytest
import torch

from podrace.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.tensor_transport.codec import spec_of
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.shared import SharedPlane

REWARD = spec_of("reward", torch.zeros(3))
STEP = spec_of("step", torch.zeros((), dtype=torch.int64))


def test_references_of_several_planes_are_opened_together(tmp_path: Path) -> None:
    memory, shared = MemoryPlane(), SharedPlane("podrace-a-", tmp_path)
    planes = Planes(memory, shared)
    reward, step = memory.create("slot", [REWARD]), shared.create("slot", [STEP])
    reward["reward"].fill_(2.0)
    step["step"].fill_(5)
    tensors = planes.open([*reward.refs(), *step.refs()])
    assert tensors["reward"].sum() == 6.0
    assert tensors["step"] == 5
    planes.close()


def test_a_required_plane_that_is_not_offered_fails_by_name() -> None:
    planes = Planes(MemoryPlane())
    assert planes.require("memory").scheme == "memory"
    with pytest.raises(FailedPrecondition, match=r"'cuda' is required.*only: memory"):
        planes.require("cuda")


def test_a_reference_of_a_plane_that_is_not_offered_fails_by_name(tmp_path: Path) -> None:
    shared = SharedPlane("podrace-a-", tmp_path)
    refs = shared.create("slot", [REWARD]).refs()
    with pytest.raises(FailedPrecondition, match=r"'shared' is required"):
        Planes(MemoryPlane()).open(refs)


def test_a_name_on_two_planes_is_refused(tmp_path: Path) -> None:
    memory, shared = MemoryPlane(), SharedPlane("podrace-a-", tmp_path)
    refs = [*memory.create("slot", [REWARD]).refs(), *shared.create("slot", [REWARD]).refs()]
    with pytest.raises(InvalidArgument, match="twice"):
        Planes(memory, shared).open(refs)


def test_closing_all_planes_closes_their_regions(tmp_path: Path) -> None:
    planes = Planes(MemoryPlane(), SharedPlane("podrace-a-", tmp_path))
    planes.require("shared").create("slot", [REWARD])
    planes.close()
    assert list(tmp_path.iterdir()) == []


def test_a_region_that_cannot_be_allocated_is_refused_with_its_size_and_leaves_the_name_free(monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    plane, spec = MemoryPlane(), spec_of("x", torch.zeros(16))
    with monkeypatch.context() as scarce:
        scarce.setattr("podrace.tensor_transport.memory.mapped", full)
        with pytest.raises(
            ResourceExhausted, match=r"not enough memory for a region of 128 bytes \(Cannot allocate memory\)"
        ):
            plane.create("slot", [spec])
    plane.create("slot", [spec]).close()
