"""Tests the interface of a plane against each plane whose ends share memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeDriver, Gpu

from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import ELEMENT_TYPES, size_bytes, spec_of
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Plane, Planes
from podrace.tensor_transport.probe import PLANE_UNUSABLE, PROBE_SPEC, answer_probe, check_probe, write_probe
from podrace.tensor_transport.shared import SharedPlane

OBSERVATION = TensorSpec(name="observation", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[5, 3, 7], layout_version=1)
TERMINATED = TensorSpec(name="terminated", data_type=tensor_pb2.DATA_TYPE_BOOL, shape=[4, 3], layout_version=1)
STEP = TensorSpec(name="step", data_type=tensor_pb2.DATA_TYPE_INT64, shape=[], layout_version=1)
EMPTY = TensorSpec(name="empty", data_type=tensor_pb2.DATA_TYPE_FLOAT64, shape=[0, 8], layout_version=1)
SPECS = [OBSERVATION, TERMINATED, STEP, EMPTY]


@dataclass
class Ends:
    """The two ends of one plane."""

    owner: Plane
    peer: Plane


def memory_ends(folder: Path) -> Ends:
    plane = MemoryPlane()
    return Ends(plane, plane)


def shared_ends(folder: Path) -> Ends:
    return Ends(SharedPlane("podrace-owner-", folder), SharedPlane("podrace-peer-", folder))


def cuda_ends(folder: Path) -> Ends:
    gpu = Gpu()
    return Ends(
        CudaPlane("podrace-owner-", lambda: FakeDriver(gpu), folder),
        CudaPlane("podrace-peer-", lambda: FakeDriver(gpu), folder),
    )


PLANES: dict[str, Callable[[Path], Ends]] = {"memory": memory_ends, "shared": shared_ends, "cuda": cuda_ends}


@pytest.fixture(params=PLANES)
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    ends = PLANES[request.param](tmp_path)
    yield ends
    ends.peer.close()
    ends.owner.close()


def test_both_ends_share_the_memory(ends: Ends) -> None:
    region = ends.owner.create("rollout_0", SPECS)
    tensors = ends.peer.open(region.refs())
    region["observation"].copy_(torch.arange(105.0).view(5, 3, 7))
    assert torch.equal(tensors["observation"], torch.arange(105.0).view(5, 3, 7))
    tensors["terminated"][2, 1] = True
    assert region["terminated"].nonzero().tolist() == [[2, 1]]


def test_a_plane_uri_begins_with_the_scheme_of_its_plane(ends: Ends) -> None:
    region = ends.owner.create("rollout_0", SPECS)
    assert region.plane_uri.startswith(f"{ends.owner.scheme}:")
    assert {ref.plane_uri for ref in region.refs()} == {region.plane_uri}


def test_a_region_lists_its_tensors_in_order(ends: Ends) -> None:
    region = ends.owner.create("rollout_0", SPECS)
    assert list(region) == ["observation", "terminated", "step", "empty"]
    assert len(region) == 4
    assert [ref.spec for ref in region.refs()] == SPECS


@pytest.mark.parametrize("data_type", ELEMENT_TYPES, ids=tensor_pb2.DataType.Name)
def test_every_element_type_is_transferred_unchanged(ends: Ends, data_type: tensor_pb2.DataType.ValueType) -> None:
    spec = TensorSpec(name="values", data_type=data_type, shape=[2, 3], layout_version=1)
    region = ends.owner.create("slot", [spec])
    region["values"].copy_(torch.tensor([[0, 1, 2], [3, 4, 5]]))
    received = ends.peer.open(region.refs())["values"]
    assert received.dtype == ELEMENT_TYPES[data_type]
    assert torch.equal(received, torch.tensor([[0, 1, 2], [3, 4, 5]]).to(received.dtype))


def test_a_scalar_and_an_empty_tensor_are_transferred(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    region["step"].fill_(7)
    tensors = ends.peer.open(region.refs())
    assert tensors["step"].shape == ()
    assert tensors["step"].item() == 7
    assert tensors["empty"].shape == (0, 8)


def test_new_memory_is_filled_with_zeros(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    assert not any(tensor.any() for tensor in region.values())


def test_tensors_start_at_multiples_of_64_after_the_header_and_do_not_overlap(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    refs = region.refs()
    assert refs[0].offset_bytes == 64
    assert all(ref.offset_bytes % 64 == 0 for ref in refs)
    assert all(one.offset_bytes + size_bytes(one.spec) <= next_.offset_bytes for one, next_ in pairwise(refs))
    assert all(region[name].data_ptr() % 64 == 0 for name in ("observation", "terminated", "step"))


def test_a_reference_of_another_generation_is_refused(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    before = region.refs()
    ends.peer.open(before)
    assert region.renew() == before[0].generation + 1
    with pytest.raises(FailedPrecondition, match=r"generation 2.*'observation' has 1"):
        ends.peer.open(before)
    assert set(ends.peer.open(region.refs())) == set(region)


def test_views_stay_usable_when_the_region_is_renewed(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    observation = region["observation"]
    region.renew()
    observation[0, 0, 0] = 3.0
    assert ends.peer.open(region.refs())["observation"][0, 0, 0] == 3.0


def test_a_closed_region_cannot_be_opened_or_handed_out(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    refs = region.refs()
    ends.peer.open(refs)
    region.close()
    region.close()
    with pytest.raises(FailedPrecondition, match=r"slot .*its owner closed it"):
        ends.peer.open(refs)
    with pytest.raises(FailedPrecondition, match="slot is closed"):
        region.refs()
    with pytest.raises(FailedPrecondition, match="slot is closed"):
        region.renew()


def test_views_outlive_region_and_plane(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    mine, theirs = region["observation"], ends.peer.open(region.refs())["observation"]
    ends.peer.close()
    ends.owner.close()
    mine.fill_(5.0)
    assert theirs.sum() == 5.0 * 105


def test_a_name_is_in_use_until_its_region_is_closed(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    with pytest.raises(AlreadyExists, match="slot exists already"):
        ends.owner.create("slot", SPECS)
    region["step"].fill_(1)
    assert ends.peer.open(region.refs())["step"].item() == 1
    region.close()
    successor = ends.owner.create("slot", SPECS)
    assert ends.peer.open(successor.refs())["step"].item() == 0, "the peer still views the memory of the closed region"


def test_closing_a_plane_closes_its_regions(ends: Ends) -> None:
    regions = [ends.owner.create(f"slot_{index}", SPECS) for index in range(3)]
    refs = [region.refs() for region in regions]
    ends.owner.close()
    for one in refs:
        with pytest.raises(FailedPrecondition):
            ends.peer.open(one)


def test_a_forgotten_region_can_be_opened_again(ends: Ends) -> None:
    region = ends.owner.create("slot", SPECS)
    ends.peer.open(region.refs())
    ends.peer.forget(region.plane_uri)
    ends.peer.forget(f"{ends.peer.scheme}:never_seen")
    region["step"].fill_(9)
    assert ends.peer.open(region.refs())["step"].item() == 9


def test_one_call_opens_tensors_of_several_regions(ends: Ends) -> None:
    one = ends.owner.create("one", [OBSERVATION])
    other = ends.owner.create("other", [STEP])
    assert set(ends.peer.open([*one.refs(), *other.refs()])) == {"observation", "step"}


@pytest.mark.parametrize("name", ["", "../escape", "a/b", "a-b", ".hidden", "a b", "ä"])
def test_a_region_name_that_could_escape_the_folder_is_refused(ends: Ends, name: str) -> None:
    with pytest.raises(InvalidArgument, match="region name"):
        ends.owner.create(name, SPECS)


FLOAT32 = tensor_pb2.DATA_TYPE_FLOAT32


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (TensorSpec(name="bad", data_type=FLOAT32, shape=[1] * 9, layout_version=1), "rank 9"),
        (TensorSpec(name="bad", data_type=FLOAT32, shape=[2**40], layout_version=1), "bytes are above"),
        (TensorSpec(name="bad", data_type=FLOAT32, shape=[2**63, 2**63], layout_version=1), "bytes are above"),
        (TensorSpec(name="bad", data_type=FLOAT32, shape=[1], layout_version=2), "layout version 2"),
        (TensorSpec(name="bad", shape=[1], layout_version=1), "data type 0"),
    ],
)
def test_a_tensor_that_cannot_be_transferred_is_refused_by_name(ends: Ends, bad: TensorSpec, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'bad'.*{complaint}"):
        ends.owner.create("slot", [bad])
    ref = ends.owner.create("slot", SPECS).refs()[0]
    ref.spec.CopyFrom(bad)
    with pytest.raises(InvalidArgument, match=f"'bad'.*{complaint}"):
        ends.peer.open([ref])


@pytest.mark.parametrize("offset", [0, 32, 72, 2**20, 2**63])
def test_a_reference_that_exceeds_its_region_is_refused(ends: Ends, offset: int) -> None:
    ref = ends.owner.create("slot", SPECS).refs()[0]
    ref.offset_bytes = offset
    with pytest.raises(InvalidArgument, match=r"'observation'.*do not fit"):
        ends.peer.open([ref])


def test_a_tensor_named_twice_is_refused(ends: Ends) -> None:
    with pytest.raises(InvalidArgument, match=r"'step'.*twice"):
        ends.owner.create("slot", [STEP, OBSERVATION, STEP])
    refs = [ends.owner.create(name, [STEP]).refs()[0] for name in ("one", "other")]
    with pytest.raises(InvalidArgument, match="twice"):
        ends.peer.open(refs)


def test_a_reference_to_an_unknown_region_is_refused(ends: Ends) -> None:
    ref = TensorRef(
        plane_uri=f"{ends.peer.scheme}:nothing", offset_bytes=64, spec=spec_of("x", torch.zeros(1)), generation=1
    )
    with pytest.raises(FailedPrecondition, match="nothing"):
        ends.peer.open([ref])


async def test_the_probe_passes_if_both_ends_share_the_memory(ends: Ends) -> None:
    region = ends.owner.create("probe", [PROBE_SPEC])
    sent = write_probe(region, seed=1)
    answer = await answer_probe(Planes(ends.peer), region.refs()[0])
    check_probe(ends.owner.scheme, sent, answer.sum)
    assert answer.device == torch.device("cpu")


async def test_the_probe_fails_if_the_ends_read_different_memory(ends: Ends) -> None:
    sent = write_probe(ends.owner.create("probe", [PROBE_SPEC]), seed=1)
    other = ends.owner.create("other", [PROBE_SPEC])
    answer = await answer_probe(Planes(ends.peer), other.refs()[0])
    with pytest.raises(FailedPrecondition, match=f"plane '{ends.owner.scheme}' failed its self-test") as caught:
        check_probe(ends.owner.scheme, sent, answer.sum)
    assert caught.value.reason == PLANE_UNUSABLE


async def test_a_missing_probe_makes_the_plane_unusable(ends: Ends) -> None:
    region = ends.owner.create("probe", [PROBE_SPEC])
    ref = region.refs()[0]
    region.close()
    with pytest.raises(FailedPrecondition, match="probe") as caught:
        await answer_probe(Planes(ends.peer), ref)
    assert caught.value.reason == PLANE_UNUSABLE
