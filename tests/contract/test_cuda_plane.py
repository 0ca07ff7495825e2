"""What the plane `cuda` promises beyond what all do: order across the two ends, and memory that is never freed early.

With a GPU of memory here; the same two ends on a real one, in two processes, are marked `gpu`.
"""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeDriver, Gpu

from podrace.errors import FailedPrecondition, ResourceExhausted, Unimplemented
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.cuda import CudaPlane, Slab
from podrace.tensor_transport.cupy_driver import CupyDriver

VALUES = TensorSpec(name="values", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[256], layout_version=1)
LARGER = TensorSpec(name="values", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[512], layout_version=1)
WHOLE = {"values": [Box.whole((256,))]}
SLAB_BYTES = 64 + 1024


class Ends:
    def __init__(self, folder: Path, gpu: Gpu | None = None) -> None:
        self.gpu = gpu or Gpu()
        self.owners, self.peers = FakeDriver(self.gpu), FakeDriver(self.gpu)
        self.owner = CudaPlane("podrace-owner-", lambda: self.owners, folder)
        self.peer = CudaPlane("podrace-peer-", lambda: self.peers, folder)


async def test_writes_are_ordered_before_reads_in_both_directions(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    region = ends.owner.create("slot", [VALUES])
    refs = region.refs()
    assert ends.owners.log == [("record", 0)], "noted before the references go out"
    await ends.peer.pull(refs)
    ends.peer.open(refs)["values"].fill_(1.0)
    await ends.peer.push(refs, WHOLE)
    assert ends.peers.log == [("wait", 0), ("submitted", -1), ("finish", -1)], "done before the reply, for any peers"
    assert threading.current_thread() not in ends.peers.waited_in, "the event loop waited for the GPU"
    assert ends.owners.log == [("record", 0)], "the event of the owner, which no peer records"


def test_what_is_kept_for_later_regions_is_counted(tmp_path: Path) -> None:
    owner = Ends(tmp_path).owner
    assert owner.spare_bytes == 0
    regions = [owner.create(name, [VALUES]) for name in ("one", "other")]
    for region in regions:
        region.close()
    assert owner.spare_bytes == 2 * SLAB_BYTES
    owner.create("one", [VALUES])
    assert owner.spare_bytes == SLAB_BYTES


def test_memory_of_closed_regions_can_be_freed_and_that_of_open_ones_stays(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    kept, closed = (ends.owner.create(name, [VALUES]) for name in ("one", "other"))
    closed.close()
    ends.owner.free_spares()
    assert (ends.owner.spare_bytes, len(ends.gpu.slabs)) == (0, 1)
    assert ends.peer.open(kept.refs())["values"].sum() == 0.0


async def test_each_region_has_its_own_event(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    one, other = ends.owner.create("one", [VALUES]), ends.owner.create("other", [VALUES])
    await ends.peer.pull([*one.refs(), *other.refs()])
    assert sorted(ends.peers.log) == [("wait", 0), ("wait", 1)]


async def test_the_owner_does_not_wait_for_its_own_event(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    refs = ends.owner.create("slot", [VALUES]).refs()
    ends.owners.log.clear()
    await ends.owner.pull(refs)
    await ends.owner.push(refs, WHOLE)
    ends.owner.open(refs)
    assert ends.owners.log == []
    assert ends.owners.opened == 0


def test_memory_is_mapped_once_and_again_after_forget(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    region = ends.owner.create("slot", [VALUES])
    for _ in range(5):
        ends.peer.open(region.refs())
    assert ends.peers.opened == 1
    ends.peer.forget(region.plane_uri)
    ends.peer.open(region.refs())
    assert ends.peers.opened == 2


def test_an_unused_slab_is_cleared_and_reused_for_the_next_region_of_its_size(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    region = ends.owner.create("one", [VALUES])
    late = ends.peer.open(region.refs())["values"]
    region.close()
    successor = ends.owner.create("two", [VALUES])
    assert len(ends.gpu.slabs) == 1, "the peer may still map it"
    late.fill_(5.0)
    assert successor["values"][0] == 5.0
    successor.close()
    assert ends.owner.create("three", [VALUES])["values"].sum() == 0.0
    ends.owner.create("four", [LARGER])
    assert len(ends.gpu.slabs) == 2


def test_spare_slabs_are_freed_when_the_gpu_is_full(tmp_path: Path) -> None:
    ends = Ends(tmp_path, Gpu(capacity=2 * SLAB_BYTES + 100))
    regions = [ends.owner.create(name, [VALUES]) for name in ("one", "two")]
    with pytest.raises(ResourceExhausted, match="full"):
        ends.owner.create("three", [LARGER])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["podrace-owner-one", "podrace-owner-two"]
    for region in regions:
        region.close()
    del regions, region
    ends.owner.create("three", [LARGER])
    assert len(ends.gpu.slabs) == 1


def test_a_region_whose_memory_was_not_exported_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(tmp_path)

    def refuse(size: int) -> Slab:
        raise FailedPrecondition("memory cannot be exported")

    with monkeypatch.context() as patch:
        patch.setattr(ends.owners, "allocate", refuse)
        with pytest.raises(FailedPrecondition, match="exported"):
            ends.owner.create("slot", [VALUES])
    assert not [*tmp_path.iterdir()]
    assert ends.owner.create("slot", [VALUES])["values"].sum() == 0.0


def test_a_new_region_of_the_same_name_is_mapped_again(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    dead = ends.owner.create("slot", [VALUES])
    dead["values"].fill_(1.0)
    assert ends.peer.open(dead.refs())["values"][0] == 1.0
    (tmp_path / "podrace-owner-slot").unlink()
    again = CudaPlane("podrace-owner-", lambda: FakeDriver(ends.gpu), tmp_path).create("slot", [VALUES])
    again["values"].fill_(2.0)
    assert ends.peer.open(again.refs())["values"][0] == 2.0


def test_a_plane_uri_is_short_and_the_handles_are_in_the_file(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    region = ends.owner.create("slot", [VALUES])
    assert region.plane_uri == "cuda:podrace-owner-slot"
    assert (tmp_path / "podrace-owner-slot").stat().st_size < 1000


def test_a_machine_without_a_gpu_is_reported() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(
        Unimplemented, match=r"plane 'cuda': (package 'cupy' is not installed|this process sees no GPU 0)"
    ):
        CupyDriver()


def test_memory_that_cannot_be_mapped_is_reported(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    region = ends.owner.create("slot", [VALUES])
    ends.gpu.slabs.clear()
    with pytest.raises(FailedPrecondition, match="cannot be mapped"):
        ends.peer.open(region.refs())


# --- on a GPU ------------------------------------------------------------------------------------------------------

PEER = """
import asyncio, sys
from pathlib import Path
import torch
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.cuda import CudaPlane
from podrace.tensor_transport.cupy_driver import CupyDriver

plane = CudaPlane("podrace-peer-", CupyDriver, Path(sys.argv[1]))
for line in sys.stdin:
    ref = TensorRef.FromString(bytes.fromhex(line.strip()))
    asyncio.run(plane.pull([ref]))
    tensor = plane.open([ref])["values"]
    answer = float(tensor.sum())
    tensor.mul_(2.0)
    asyncio.run(plane.push([ref], {"values": [Box.whole(tuple(tensor.shape))]}))
    print(answer, flush=True)
"""


@pytest.fixture
def real_plane(tmp_path: Path) -> CudaPlane:
    return CudaPlane("podrace-owner-", CupyDriver, tmp_path)


def peer_process(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PEER, str(folder)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def ask(peer: "subprocess.Popen[str]", ref: tensor_pb2.TensorRef) -> str:
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(ref.SerializeToString().hex() + "\n")
    peer.stdin.flush()
    return peer.stdout.readline()


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


@pytest.mark.gpu
def test_two_processes_work_on_one_memory_in_turns(real_plane: CudaPlane, tmp_path: Path) -> None:
    large = TensorSpec(name="values", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[2**24], layout_version=1)
    region = real_plane.create("slot", [large])
    peer = peer_process(tmp_path)
    try:
        for turn in range(20):
            region["values"].fill_(float(turn))
            region.renew()
            assert float(ask(peer, region.refs()[0])) == turn * 2.0**24
            assert float(region["values"].mean()) == 2.0 * turn
    finally:
        peer.kill()
        peer.wait()
        real_plane.close()


@pytest.mark.gpu
@pytest.mark.parametrize("dies", ["peer", "owner"])
def test_no_memory_is_left_on_the_gpu_when_either_end_is_killed(dies: str, tmp_path: Path) -> None:
    size = 2**28
    large = TensorSpec(name="values", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[size // 4], layout_version=1)
    torch.zeros(1, device="cuda")
    before = free_bytes()
    if dies == "peer":
        plane = CudaPlane("podrace-owner-", CupyDriver, tmp_path)
        region = plane.create("slot", [large])
        peer = peer_process(tmp_path)
        ask(peer, region.refs()[0])
        peer.kill()
        peer.wait()
        region["values"].fill_(1.0)
        assert float(region["values"][-1]) == 1.0
        del region
        plane.close()
    else:
        program = PEER.split("plane =")[0] + (
            "from podrace.tensor_transport.codec import spec_of\n"
            "plane = CudaPlane('podrace-owner-', CupyDriver, Path(sys.argv[1]))\n"
            f"region = plane.create('slot', [spec_of('values', torch.empty({size // 4}, device='meta'))])\n"
            "region['values'].fill_(3.0)\n"
            "torch.cuda.synchronize()\n"
            "print(region.refs()[0].SerializeToString().hex(), flush=True)\n"
            "sys.stdin.read()\n"
        )
        owner = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert owner.stdout is not None
        ref = tensor_pb2.TensorRef.FromString(bytes.fromhex(owner.stdout.readline().strip()))
        plane = CudaPlane("podrace-peer-", CupyDriver, tmp_path)
        assert float(plane.open([ref])["values"][0]) == 3.0
        owner.kill()
        owner.wait()
        plane.close()
    torch.cuda.synchronize()
    assert before - free_bytes() < size // 2
