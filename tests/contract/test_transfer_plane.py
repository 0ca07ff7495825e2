"""Tests the plane `group`: copies by collectives, and groups that are replaced after a failure.

Tests use gloo. Those marked `gpu` use NCCL, which allows two ranks on one GPU since 2.30, as an experiment.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_streams import FakeCuda

from podrace import rpc
from podrace.errors import FailedPrecondition, InvalidArgument, Unavailable
from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport import transfer
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.codec import ELEMENT_TYPES
from podrace.tensor_transport.plane import Plane, Planes, Region
from podrace.tensor_transport.probe import PLANE_UNUSABLE, PROBE_SPEC, answer_probe, check_probe, write_probe
from podrace.tensor_transport.transfer import GroupPlane, Link, TransferServicer

OBSERVATION = TensorSpec(name="observation", data_type=pb.DATA_TYPE_FLOAT32, shape=[5, 3, 7], layout_version=1)
TERMINATED = TensorSpec(name="terminated", data_type=pb.DATA_TYPE_BOOL, shape=[4, 3], layout_version=1)
STEP = TensorSpec(name="step", data_type=pb.DATA_TYPE_INT64, shape=[], layout_version=1)
EMPTY = TensorSpec(name="empty", data_type=pb.DATA_TYPE_FLOAT64, shape=[0, 8], layout_version=1)
SPECS = [OBSERVATION, TERMINATED, STEP, EMPTY]
TIMEOUT_SECONDS = 5.0


@dataclass
class Ends:
    address: str
    owner: GroupPlane
    peer: GroupPlane
    servicer: TransferServicer


@pytest.fixture
def folder() -> Iterator[Path]:
    """Linux limits the path of a socket to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr") as name:
        yield Path(name)


@asynccontextmanager
async def serving(folder: Path, peer: GroupPlane | None = None, device: str = "cpu") -> AsyncIterator[Ends]:
    address = f"unix:{folder}/t.sock"
    owner = GroupPlane(address, device=device, timeout_seconds=TIMEOUT_SECONDS)
    servicer = TransferServicer(owner)
    service = Service(
        pb.DESCRIPTOR.services_by_name["TransferService"],
        pb_grpc.add_TransferServiceServicer_to_server,
        servicer,
    )
    server = await Server.start(ServerConfig(listen=address, grace_seconds=0.0), [service])
    ends = Ends(address, owner, peer or GroupPlane(peer="worker-0", timeout_seconds=TIMEOUT_SECONDS), servicer)
    try:
        yield ends
    finally:
        if peer is None:
            ends.peer.close()
        servicer.close()
        owner.close()
        await server.drain()


def filled(plane: Plane, name: str = "slot") -> Region:
    region = plane.create(name, SPECS)
    region["observation"].copy_(torch.arange(105.0).view(5, 3, 7))
    region["terminated"][2, 1] = True
    region["step"].fill_(7)
    return region


async def test_what_the_owner_wrote_is_pulled(folder: Path) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        for turn in range(3):
            region["step"].fill_(turn)
            await ends.peer.pull(region.refs())
            tensors = ends.peer.open(region.refs())
            assert torch.equal(tensors["observation"], torch.arange(105.0).view(5, 3, 7))
            assert tensors["terminated"].nonzero().tolist() == [[2, 1]]
            assert tensors["step"].item() == turn
            assert tensors["empty"].shape == (0, 8)


async def test_only_the_boxes_that_were_pushed_change_at_the_owner(folder: Path) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        refs = region.refs()[:2]
        tensors = ends.peer.open(refs)
        tensors["observation"].fill_(-1.0)
        tensors["terminated"].fill_(True)
        await ends.peer.push(refs, {"observation": [Box((1, 1, 0), (3, 2, 7))], "terminated": [Box((0, 2), (4, 1))]})
        expected = torch.arange(105.0).view(5, 3, 7)
        expected[1:4, 1:] = -1.0
        assert torch.equal(region["observation"], expected)
        assert region["terminated"].nonzero().tolist() == [[0, 2], [1, 2], [2, 1], [2, 2], [3, 2]]


@pytest.mark.parametrize("data_type", ELEMENT_TYPES, ids=pb.DataType.Name)
async def test_every_element_type_is_transferred_both_ways(folder: Path, data_type: pb.DataType.ValueType) -> None:
    spec = TensorSpec(name="values", data_type=data_type, shape=[2, 3], layout_version=1)
    async with serving(folder) as ends:
        region = ends.owner.create("slot", [spec])
        region["values"].copy_(torch.tensor([[0, 1, 2], [3, 4, 5]]))
        await ends.peer.pull(region.refs())
        received = ends.peer.open(region.refs())["values"]
        assert torch.equal(received, region["values"])
        region["values"].zero_()
        await ends.peer.push(region.refs(), {"values": [Box.whole((2, 3))]})
        assert torch.equal(region["values"], received)


async def test_each_peer_has_its_own_group(folder: Path) -> None:
    async with serving(folder) as ends:
        region, other = filled(ends.owner), GroupPlane(peer="worker-1", timeout_seconds=TIMEOUT_SECONDS)
        refs = region.refs()[:1]
        for column, peer in enumerate((ends.peer, other)):
            peer.open(refs)["observation"].fill_(float(-column))
        boxes = [{"observation": [Box((0, column, 0), (5, 1, 7))]} for column in range(2)]
        await asyncio.gather(ends.peer.push(refs, boxes[0]), other.push(refs, boxes[1]))
        assert region["observation"][:, 0].eq(0.0).all()
        assert region["observation"][:, 1].eq(-1.0).all()
        other.close()


async def test_memory_that_was_handed_out_again_is_refused_and_the_group_stays_usable(folder: Path) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        stale = region.refs()
        await ends.peer.pull(stale)
        groups = set(ends.servicer._links)
        region.renew()
        with pytest.raises(FailedPrecondition, match="handed out the memory again"):
            await ends.peer.pull(stale)
        with pytest.raises(FailedPrecondition, match="handed out the memory again"):
            await ends.peer.push(stale[:1], {"observation": [Box.whole((5, 3, 7))]})
        await ends.peer.pull(region.refs())
        assert set(ends.servicer._links) == groups


@pytest.mark.parametrize(
    ("box", "message"), [(Box((0, 0, 0), (6, 3, 7)), "does not fit"), (Box((0,), (1,)), "does not fit")]
)
async def test_a_box_that_does_not_fit_is_refused_before_the_transfer(folder: Path, box: Box, message: str) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        request = pb.ReceiveTensorsRequest(
            prefix=await joined(ends), boxes=[pb.TensorBox(tensor=region.refs()[0], starts=box.starts, sizes=box.sizes)]
        )
        stub = pb_grpc.TransferServiceStub(ends.peer.channel(ends.address))
        with pytest.raises(InvalidArgument, match=message):
            async for _ in rpc.stream(stub.ReceiveTensors, request, deadline_seconds=TIMEOUT_SECONDS):
                pass
        await ends.peer.pull(region.refs())


async def joined(ends: Ends) -> str:
    region = ends.owner.create("first", [STEP])
    await ends.peer.pull(region.refs())
    region.close()
    (prefix,) = ends.servicer._links
    return prefix


async def test_a_peer_without_a_name_is_refused(folder: Path) -> None:
    nameless = GroupPlane(timeout_seconds=TIMEOUT_SECONDS)
    async with serving(folder, nameless) as ends:
        with pytest.raises(InvalidArgument, match="peer is empty"):
            await nameless.pull(filled(ends.owner).refs())
    nameless.close()


async def test_a_peer_joins_again_when_the_owner_was_restarted(folder: Path) -> None:
    peer = GroupPlane(peer="worker-0", timeout_seconds=TIMEOUT_SECONDS)
    for life in range(2):
        async with serving(folder, peer) as ends:
            region = filled(ends.owner)
            region["step"].fill_(life)
            await peer.pull(region.refs())
            assert peer.open(region.refs())["step"].item() == life
    peer.close()


async def test_a_transfer_between_gpus_happens_on_another_stream_of_the_plane_s_gpu(monkeypatch) -> None:
    """A thread whose current GPU is another one would create a context there."""
    cuda = FakeCuda().install(monkeypatch)
    plane, streams = GroupPlane(), []
    plane.device = torch.device("cuda:1")
    group = SimpleNamespace(broadcast_=lambda tensors, source: streams.append(torch.cuda.current_stream().name))
    await plane.broadcast(group, [], 0)
    plane.close()
    assert streams == ["stream 1"]
    assert cuda.ordered == [("stream 1", "default")]
    assert cuda.used == [1]


async def test_a_transfer_fails_if_the_memory_was_handed_out_again_meanwhile(folder: Path, monkeypatch) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        await ends.peer.pull(region.refs())
        (link,) = ends.servicer._links.values()
        group = await link.group
        send = group.broadcast_

        def late(tensors, source):
            send(tensors, source)
            region.renew()

        monkeypatch.setattr(group, "broadcast_", late)
        with pytest.raises(FailedPrecondition, match="generation 2"):
            await ends.peer.pull(region.refs())
        monkeypatch.undo()
        await ends.peer.pull(region.refs())
        assert list(ends.servicer._links.values()) == [link], "the group is as good as before"


async def test_a_transfer_whose_group_was_dropped_while_it_waited_is_asked_to_join_again(folder: Path) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        await ends.peer.pull(region.refs())
        ((prefix, link),) = ends.servicer._links.items()
        request = pb.SendTensorsRequest(prefix=prefix, tensors=region.refs())
        await link.turn.acquire()
        sending = ends.servicer.SendTensors(request, None)
        waiting = asyncio.ensure_future(anext(sending))
        await asyncio.sleep(0)
        ends.owner.leave(link)
        link.turn.release()
        with pytest.raises(FailedPrecondition, match="does not exist in this process") as caught:
            await waiting
        assert caught.value.reason == "ERROR_REASON_NOT_OPEN"


class SlowToLeave:
    """A group whose abort takes until a test allows it, as that of NCCL may until its timeout."""

    def __init__(self) -> None:
        self.may_leave, self.left = threading.Event(), False

    def abort(self) -> None:
        self.left = self.may_leave.wait(10)


async def test_leaving_a_group_does_not_stop_the_event_loop_and_the_next_one_is_joined_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, next_group = SlowToLeave(), SlowToLeave()
    joined: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    joined.set_result(slow)
    monkeypatch.setattr(transfer, "Group", SimpleNamespace(join=lambda *_, **__: (slow.left, next_group)))
    plane = GroupPlane(peer="worker-0")
    plane.leave(Link("one", joined))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not slow.left
    joining: asyncio.Future[Any] = plane.join("store", "two", 1)
    slow.may_leave.set()
    assert await joining == (True, next_group), "joined before the other group was gone"
    plane.close()


async def test_a_peer_that_failed_joins_a_new_group(folder: Path) -> None:
    async with serving(folder) as ends:
        region = filled(ends.owner)
        await ends.peer.pull(region.refs())
        (first,) = ends.servicer._links
        (await ends.peer._links[ends.address].group).abort()
        with pytest.raises(Unavailable):
            await ends.peer.pull(region.refs())
        await ends.peer.pull(region.refs())
        (second,) = ends.servicer._links
        assert first != second
        assert ends.peer.open(region.refs())["step"].item() == 7


async def test_the_probe_passes(folder: Path) -> None:
    async with serving(folder) as ends:
        region = ends.owner.create("probe", [PROBE_SPEC])
        sent = write_probe(region, 1)
        check_probe("group", sent, (await answer_probe(Planes(ends.peer), region.refs()[0])).sum)
        assert not ends.peer._mirrors


async def test_an_unreachable_owner_makes_the_plane_unusable(folder: Path) -> None:
    peer = GroupPlane(peer="worker-0", timeout_seconds=TIMEOUT_SECONDS)
    async with serving(folder, peer) as ends:
        ref = ends.owner.create("probe", [PROBE_SPEC]).refs()[0]
    with pytest.raises(FailedPrecondition) as caught:
        await answer_probe(Planes(peer), ref)
    assert caught.value.reason == PLANE_UNUSABLE
    peer.close()


# --- two processes -------------------------------------------------------------------------------------------------

PEER = """
import asyncio, sys
import torch
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.transfer import GroupPlane

async def main():
    device = sys.argv[1]
    plane = GroupPlane(peer=sys.argv[2], device=device, timeout_seconds=20.0)
    ref = TensorRef.FromString(bytes.fromhex(sys.stdin.readline().strip()))
    while True:
        await plane.pull([ref])
        tensor = plane.open([ref])["values"]
        print(float(tensor.double().mean()), flush=True)
        if not sys.stdin.readline():
            return
        tensor.mul_(2.0)
        await plane.push([ref], {"values": [Box.whole(tuple(tensor.shape))]})
        print("pushed", flush=True)
        if not sys.stdin.readline():
            return

asyncio.run(main())
"""
VALUES = TensorSpec(name="values", data_type=pb.DATA_TYPE_FLOAT32, shape=[2**20], layout_version=1)


class Peer:
    def __init__(self, name: str, region: Region, device: str = "cpu", **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, device, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environment},
        )
        self.say(region.refs()[0].SerializeToString().hex())

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    async def hear(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


async def in_turns(region: Region, peer: Peer) -> None:
    for turn in range(1, 4):
        assert float(await peer.hear()) == turn
        peer.say()
        assert await peer.hear() == "pushed"
        assert region["values"].eq(2.0 * turn).all()
        region["values"].fill_(turn + 1.0)
        peer.say()


async def test_a_killed_peer_is_detected_and_a_new_one_joins(folder: Path) -> None:
    async with serving(folder) as ends:
        region = ends.owner.create("slot", [VALUES])
        region["values"].fill_(1.0)
        for _ in range(2):
            peer = Peer("worker-0", region)
            try:
                assert float(await peer.hear()) == 1.0
            finally:
                peer.kill()
        assert len(ends.servicer._links) == 1, "the group of the killed member is dropped"


async def test_two_processes_work_on_one_tensor_in_turns(folder: Path) -> None:
    async with serving(folder) as ends:
        region = ends.owner.create("slot", [VALUES])
        region["values"].fill_(1.0)
        peer = Peer("worker-0", region)
        try:
            await in_turns(region, peer)
        finally:
            peer.kill()


@pytest.mark.gpu
@pytest.mark.parametrize("gpus", [1, 2])
async def test_gpus_work_on_one_tensor_in_turns(folder: Path, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    if gpus == 1:
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        if torch.cuda.nccl.version() < (2, 30):
            pytest.skip("NCCL before 2.30 refuses two ranks on one GPU")
    async with serving(folder, device="cuda:0") as ends:
        region = ends.owner.create("slot", [VALUES])
        region["values"].fill_(1.0)
        peer = Peer("worker-0", region, f"cuda:{gpus - 1}")
        try:
            async with asyncio.timeout(90.0):
                await in_turns(region, peer)
        finally:
            peer.kill()
