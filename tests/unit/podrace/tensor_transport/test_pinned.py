"""Memory of the plane `shared` is registered with CUDA as long as it is mapped, if the process computes on a GPU."""

import gc
from pathlib import Path

import pytest
import torch
from fake_streams import FakeCuda

from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport import pinned
from podrace.tensor_transport.shared import SharedPlane

VALUES = TensorSpec(name="values", data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1000], layout_version=1)
BYTES = 64 + 4032


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda().install(monkeypatch)


def test_both_ends_register_what_they_map_until_the_last_view_is_gone(cuda: FakeCuda, tmp_path: Path) -> None:
    owner, peer = (SharedPlane(f"podrace-{end}-", tmp_path, pinned=True) for end in ("owner", "peer"))
    region = owner.create("slot", [VALUES])
    values = peer.open(region.refs())["values"]
    assert list(cuda.registered.values()) == [BYTES, BYTES]
    assert values.data_ptr() - 64 in cuda.registered
    peer.open(region.refs())
    assert len(cuda.registered) == 2, "mapped and registered once"
    peer.close()
    assert len(cuda.registered) == 2, "a view is left"
    del values
    gc.collect()
    assert len(cuda.registered) == 1
    assert len(cuda.waits) == 1, "copies that were started have finished before the memory is unmapped"
    owner.close()
    del region
    gc.collect()
    assert cuda.registered == {}


def test_a_process_without_a_gpu_registers_nothing(cuda: FakeCuda, tmp_path: Path) -> None:
    region = SharedPlane("podrace-owner-", tmp_path).create("slot", [VALUES])
    SharedPlane("podrace-peer-", tmp_path).open(region.refs())
    assert cuda.registered == {}


def test_large_memory_is_not_registered(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_lines: list[dict[str, object]]
) -> None:
    monkeypatch.setattr(pinned, "MOST_BYTES", BYTES - 1)
    region = SharedPlane("podrace-owner-", tmp_path, pinned=True).create("slot", [VALUES])
    region["values"].fill_(1.0)
    assert cuda.registered == {}
    assert log_lines[-1]["event"] == "shared memory is too large to be pinned"


def test_memory_that_cuda_does_not_register_is_used_anyway(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_lines: list[dict[str, object]]
) -> None:
    cuda.refused = 2
    monkeypatch.setattr(torch, "empty", cuda.launch)
    region = SharedPlane("podrace-owner-", tmp_path, pinned=True).create("slot", [VALUES])
    region["values"].fill_(1.0)
    assert log_lines[-1]["cuda_error"] == 2
    assert cuda.pending == 0, "the next kernel launch of torch does not raise it"
    region.close()
    del region
    gc.collect()
    assert cuda.waits == [], "there was nothing to unregister"


def test_memory_is_unregistered_on_the_gpu_that_it_was_registered_for(cuda: FakeCuda, tmp_path: Path) -> None:
    with torch.cuda.device(3):
        region = SharedPlane("podrace-owner-", tmp_path, pinned=True).create("slot", [VALUES])
    region.close()
    del region
    gc.collect()
    assert cuda.devices == [("wait", 3), ("unregister", 3)]
