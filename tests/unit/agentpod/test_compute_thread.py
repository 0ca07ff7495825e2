"""The thread that computes uses the GPU of its process."""

import threading

import pytest
import torch

from agentpod.compute_thread import ComputeThread
from agentpod.liveness.supervisor_actions import EXIT_GPU_LOST
from podrace.errors import FailedPrecondition, ResourceExhausted


async def test_the_gpu_is_the_current_device_of_the_thread_before_anything_runs_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[tuple[str, str]] = []
    note = lambda what: happened.append((what, threading.current_thread().name.partition("_")[0]))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", note)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    compute = ComputeThread("cuda:1")
    await compute.run(note, "first")
    await compute.run(note, "second")
    compute.close()
    assert happened == [("cuda:1", "compute"), ("first", "compute"), ("second", "compute")]
    assert not torch.backends.cudnn.allow_tf32, "convolutions are computed in float32"


async def test_a_gpu_that_cannot_be_used_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    compute = ComputeThread("cuda:0")
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match=r"device cuda:0: PyTorch .* cannot use it: The NVIDIA driver on"):
            await compute.run(lambda: pytest.fail("ran"))
    compute.close()


@pytest.mark.parametrize("lost", [True, False])
async def test_the_process_exits_if_its_gpu_cannot_be_used_after_an_error(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    def synchronize(device: str) -> None:
        if lost:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    exits: list[int] = []
    compute = ComputeThread("cuda:1", leave=exits.append)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        await compute.run(fail)
    assert exits == ([EXIT_GPU_LOST] if lost else [])
    with pytest.raises(ResourceExhausted):
        await compute.run(exhaust)
    assert len(exits) == lost, "memory can be freed"
    compute.close()


def exhaust() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


async def test_without_a_gpu_cuda_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("touched"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: pytest.fail("touched"))
    compute = ComputeThread()
    assert await compute.run(lambda: 3) == 3
    with pytest.raises(RuntimeError, match="of the processor"):
        await compute.run(fail)
    compute.close()


def fail() -> None:
    raise RuntimeError("an error of the processor")
