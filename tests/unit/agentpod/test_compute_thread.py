"""The thread that computes uses the GPU of its process."""

import threading

import pytest
import torch

from agentpod.compute_thread import ComputeThread
from podrace.errors import FailedPrecondition


async def test_the_gpu_is_the_current_device_of_the_thread_before_anything_runs_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[tuple[str, str]] = []
    note = lambda what: happened.append((what, threading.current_thread().name.partition("_")[0]))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", note)
    compute = ComputeThread("cuda:1")
    await compute.run(note, "first")
    await compute.run(note, "second")
    compute.close()
    assert happened == [("cuda:1", "compute"), ("first", "compute"), ("second", "compute")]


async def test_a_gpu_that_cannot_be_used_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    compute = ComputeThread("cuda:0")
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match=r"device cuda:0: PyTorch .* cannot use it: The NVIDIA driver on"):
            await compute.run(lambda: pytest.fail("ran"))
    compute.close()


async def test_without_a_gpu_cuda_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("touched"))
    compute = ComputeThread()
    assert await compute.run(lambda: 3) == 3
    compute.close()
