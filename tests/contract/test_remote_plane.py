"""Tests the plane `grpc`: pulled and pushed data arrives completely or not at all."""

import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from podrace import rpc
from podrace.errors import AlreadyExists, DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.boxes import Box, split
from podrace.tensor_transport.codec import ELEMENT_TYPES
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import PLANE_UNUSABLE, PROBE_SPEC, answer_probe, check_probe, write_probe
from podrace.tensor_transport.remote import CHUNK_BYTES, GrpcPlane, TensorServicer

OBSERVATION = TensorSpec(name="observation", data_type=pb.DATA_TYPE_FLOAT32, shape=[5, 3, 7], layout_version=1)
TERMINATED = TensorSpec(name="terminated", data_type=pb.DATA_TYPE_BOOL, shape=[4, 3], layout_version=1)
STEP = TensorSpec(name="step", data_type=pb.DATA_TYPE_INT64, shape=[], layout_version=1)
EMPTY = TensorSpec(name="empty", data_type=pb.DATA_TYPE_FLOAT64, shape=[0, 8], layout_version=1)
SPECS = [OBSERVATION, TERMINATED, STEP, EMPTY]


@dataclass
class Ends:
    owner: GrpcPlane
    peer: GrpcPlane
    stub: Any


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Linux limits the path of a socket to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr") as folder:
        yield Path(folder)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Ends]:
    address = f"unix:{folder}/t.sock"
    owner, peer = GrpcPlane(address), GrpcPlane()
    service = Service(
        pb.DESCRIPTOR.services_by_name["TensorService"],
        pb_grpc.add_TensorServiceServicer_to_server,
        TensorServicer(owner),
    )
    server = await Server.start(ServerConfig(listen=address, grace_seconds=0.0), [service])
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield Ends(owner, peer, pb_grpc.TensorServiceStub(channel))
    finally:
        peer.close()
        owner.close()
        await server.drain()


async def test_what_the_owner_wrote_is_pulled(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        region = ends.owner.create("rollout_0", SPECS)
        region["observation"].copy_(torch.arange(105.0).view(5, 3, 7))
        region["step"].fill_(7)
        views = ends.peer.open(region.refs())
        assert not views["observation"].any()
        await ends.peer.pull(region.refs())
        assert torch.equal(views["observation"], region["observation"])
        assert views["step"].item() == 7
        assert views["empty"].shape == (0, 8)


async def test_only_the_boxes_that_were_written_are_pushed(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        region = ends.owner.create("rollout_0", SPECS)
        region["observation"].fill_(-1.0)
        tensors = ends.peer.open(region.refs())
        tensors["observation"].copy_(torch.arange(105.0).view(5, 3, 7))
        tensors["terminated"][3, 2] = True
        boxes = {
            "observation": [Box((1, 1, 0), (3, 2, 7))],
            "terminated": [Box.whole((4, 3))],
            "step": [Box.whole(())],
            "empty": [Box.whole((0, 8))],
        }
        await ends.peer.push(region.refs(), boxes)
        expected = torch.full((5, 3, 7), -1.0)
        expected[1:4, 1:3] = torch.arange(105.0).view(5, 3, 7)[1:4, 1:3]
        assert torch.equal(region["observation"], expected)
        assert region["terminated"].nonzero().tolist() == [[3, 2]]


@pytest.mark.parametrize("data_type", ELEMENT_TYPES, ids=pb.DataType.Name)
async def test_every_element_type_is_transferred_unchanged(
    short_folder: Path, data_type: pb.DataType.ValueType
) -> None:
    spec = TensorSpec(name="values", data_type=data_type, shape=[2, 3], layout_version=1)
    async with serving(short_folder) as ends:
        region = ends.owner.create("slot", [spec])
        region["values"].copy_(torch.tensor([[0, 1, 2], [3, 4, 5]]))
        await ends.peer.pull(region.refs())
        received = ends.peer.open(region.refs())["values"]
        assert received.dtype == ELEMENT_TYPES[data_type]
        assert torch.equal(received, region["values"])
        received.zero_()
        await ends.peer.push(region.refs(), {"values": [Box.whole((2, 3))]})
        assert not region["values"].any()


async def test_a_tensor_larger_than_a_message_is_transferred_in_chunks(short_folder: Path) -> None:
    spec = TensorSpec(name="large", data_type=pb.DATA_TYPE_FLOAT32, shape=[3, 5, 100_003], layout_version=1)
    async with serving(short_folder) as ends:
        region = ends.owner.create("slot", [spec])
        region["large"].copy_(torch.randn(3, 5, 100_003))
        await ends.peer.pull(region.refs())
        mine = ends.peer.open(region.refs())["large"]
        assert torch.equal(mine, region["large"])
        mine.neg_()
        await ends.peer.push(region.refs(), {"large": [Box((1, 0, 0), (2, 5, 100_003))]})
        assert torch.equal(mine[1:], region["large"][1:])
        assert torch.equal(mine[0], -region["large"][0])


def test_a_block_of_an_owner_that_keeps_no_header_in_it_begins_with_a_tensor() -> None:
    peer = GrpcPlane()
    specs = [(STEP, 0), (TERMINATED, 64)]
    refs = [
        pb.TensorRef(plane_uri="grpc:owner:1/slot", offset_bytes=offset, spec=spec, generation=9)
        for spec, offset in specs
    ]
    views = peer.open(refs)
    assert views["step"].item() == 0
    views["step"].fill_(-1)
    assert not peer.open(refs)["terminated"].any()
    assert peer.open(refs)["step"].item() == -1
    empty = pb.TensorRef(plane_uri="grpc:owner:1/empty", spec=EMPTY, generation=1)
    assert peer.open([empty])["empty"].numel() == 0
    refs[1].offset_bytes = 8
    with pytest.raises(InvalidArgument, match="tensors start at multiples of 64, at 0 or later"):
        peer.open(refs)
    peer.close()


async def test_memory_that_was_handed_out_again_is_neither_read_nor_written(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        region = ends.owner.create("slot", SPECS)
        before = region.refs()
        ends.peer.open(before)["step"].fill_(5)
        region.renew()
        with pytest.raises(FailedPrecondition, match="generation 2"):
            await ends.peer.pull(before)
        with pytest.raises(FailedPrecondition, match="generation 2"):
            await ends.peer.push(before, {ref.spec.name: [Box.whole(ref.spec.shape)] for ref in before})
        assert region["step"].item() == 0
        region.close()
        with pytest.raises(FailedPrecondition, match="its owner closed it"):
            await ends.peer.pull(before)


async def test_the_owner_works_in_place(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        region = ends.owner.create("slot", SPECS)
        await ends.owner.pull(region.refs())
        ends.owner.open(region.refs())["step"].fill_(3)
        await ends.owner.push(region.refs(), {})
        assert region["step"].item() == 3
        with pytest.raises(AlreadyExists):
            ends.owner.create("slot", SPECS)


async def test_a_request_for_more_than_the_region_is_refused_at_once(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        (ref, *_) = ends.owner.create("slot", SPECS).refs()
        for shape in ([2**33], [2**60, 2**3], [105, 2**20]):
            # If it were cut into pieces first, the owner would be busy for hours.
            ref.spec.shape[:] = shape
            answers = rpc.stream(ends.stub.ReadTensors, pb.ReadTensorsRequest(tensors=[ref]), deadline_seconds=5.0)
            with pytest.raises(InvalidArgument):
                await anext(answers)


async def test_own_regions_and_those_of_other_processes_are_opened_together(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        here = GrpcPlane("unix:/nowhere/h.sock")
        own, others = here.create("own", [STEP]), ends.owner.create("slot", [OBSERVATION])
        own["step"].fill_(3)
        others["observation"].fill_(4.0)
        refs = [*own.refs(), *others.refs()]
        await here.pull(refs)
        views = here.open(refs)
        assert (views["step"].item(), views["observation"].unique().item()) == (3, 4.0)
        views["step"].fill_(5)
        assert own["step"].item() == 5
        here.close()


async def test_references_name_an_address_that_was_set_later(short_folder: Path) -> None:
    plane = GrpcPlane()
    with pytest.raises(FailedPrecondition):
        plane.create("slot", [STEP])
    plane.serve_at("127.0.0.1:9")
    region = plane.create("slot", [STEP])
    assert region.plane_uri == "grpc:127.0.0.1:9/slot"
    region["step"].fill_(2)
    assert plane.open(region.refs())["step"].item() == 2
    plane.close()


async def test_an_unreachable_owner_is_named(short_folder: Path) -> None:
    ref = pb.TensorRef(
        plane_uri=f"grpc:unix:{short_folder}/missing.sock/slot", offset_bytes=64, spec=STEP, generation=1
    )
    with pytest.raises(Unavailable):
        await GrpcPlane().pull([ref])


def chunk(region: Any, **changes: Any) -> pb.WriteTensorsRequest:
    data = bytes(12)
    values = {
        "tensor": region.refs()[1],
        "starts": [0, 0],
        "sizes": [4, 3],
        "data": data,
        "digest": hashlib.sha256(data).hexdigest(),
    }
    return pb.WriteTensorsRequest(chunk=pb.TensorChunk(**{**values, **changes}))


@pytest.mark.parametrize(
    ("changes", "refusal", "message"),
    [
        ({"digest": "0" * 64}, DataLoss, "is damaged"),
        ({"data": bytes(11)}, InvalidArgument, "11 bytes"),
        ({"starts": [1, 0]}, InvalidArgument, "does not fit"),
        ({"starts": [0]}, InvalidArgument, "does not fit"),
        ({"starts": [2**63, 0]}, InvalidArgument, "expected at most"),
        ({"tensor": pb.TensorRef(plane_uri="shared:x")}, InvalidArgument, "must be 'grpc:'"),
        ({"tensor": pb.TensorRef(plane_uri="grpc:elsewhere:1/x")}, InvalidArgument, "not served here"),
    ],
)
async def test_a_malformed_chunk_is_refused(
    short_folder: Path, changes: dict[str, Any], refusal: type[Exception], message: str
) -> None:
    async with serving(short_folder) as ends:
        region = ends.owner.create("slot", SPECS)
        region["terminated"].fill_(True)
        with pytest.raises(refusal, match=message):
            await rpc.send(ends.stub.WriteTensors, [chunk(region, **changes)], deadline_seconds=5.0)
        assert region["terminated"].all()
        sent = await rpc.send(ends.stub.WriteTensors, [chunk(region)], deadline_seconds=5.0)
        assert sent == pb.WriteTensorsResponse(size_bytes=12)
        assert not region["terminated"].any()


async def test_the_probe_passes(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        region, planes = ends.owner.create("probe", [PROBE_SPEC]), Planes(MemoryPlane(), ends.peer)
        sent = write_probe(region, 1)
        answer = await answer_probe(planes, region.refs()[0])
        check_probe("grpc", sent, answer.sum)
        assert not ends.peer._mirrors, "the probe was not forgotten"


async def test_a_probe_has_any_name_and_shape_and_float64_numbers(short_folder: Path) -> None:
    spec = TensorSpec(name="numbers", data_type=pb.DATA_TYPE_FLOAT64, shape=[2, 3], layout_version=1)
    async with serving(short_folder) as ends:
        region = ends.owner.create("other", [spec, STEP])
        region["numbers"].fill_(2.5)
        numbers, step = region.refs()
        assert (await answer_probe(Planes(ends.peer), numbers)).sum == 15.0
        with pytest.raises(InvalidArgument, match="data_type is DATA_TYPE_INT64: expected DATA_TYPE_FLOAT64"):
            await answer_probe(Planes(ends.peer), step)


async def test_an_owner_that_does_not_answer_makes_the_plane_unusable(short_folder: Path) -> None:
    async with serving(short_folder) as ends:
        ref = ends.owner.create("probe", [PROBE_SPEC]).refs()[0]
    peer = GrpcPlane()
    with pytest.raises(FailedPrecondition) as caught:
        await answer_probe(Planes(peer), ref)
    assert caught.value.reason == PLANE_UNUSABLE
    assert not peer._mirrors
    peer.close()


def test_a_process_without_a_service_cannot_create_regions() -> None:
    with pytest.raises(FailedPrecondition, match="that does not serve them"):
        GrpcPlane().create("slot", SPECS)


@pytest.mark.parametrize("sizes", [(), (1,), (7,), (5, 3, 7), (2, 1, 9, 4), (0, 4), (1, 1, 100)])
@pytest.mark.parametrize("most", [1, 4, 10, 1000])
def test_boxes_cover_every_element_once_and_fit(sizes: tuple[int, ...], most: int) -> None:
    seen = torch.zeros(sizes, dtype=torch.int32)
    for box in split(Box.whole(sizes), most):
        assert 0 < box.elements <= most
        seen[box.index] += 1
    assert bool((seen == 1).all())


def test_boxes_are_as_large_as_allowed() -> None:
    assert [box.sizes for box in split(Box.whole((10, 1000)), 4000)] == [(4, 1000), (4, 1000), (2, 1000)]
    assert CHUNK_BYTES < 4 * 2**20, "what gRPC takes as one message"
