import pytest
import torch

from agentpod import memory_errors
from agentpod.compute_thread import ComputeThread
from agentpod.memory_errors import GENERAL, exhausted, free_bytes, needs_memory_for, settings_of
from podrace.errors import ResourceExhausted


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Failed to allocate 1024 bytes on device 'cuda:0'"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_exhausted_memory_is_recognized_and_the_settings_are_named(error: Exception) -> None:
    found = exhausted(error, "cpu", "environment.count")
    assert found is not None
    assert found.message.startswith("the memory of cpu is exhausted: lower environment.count: ")
    assert "\n" not in found.message


def test_other_errors_are_not_reported_as_exhausted_memory() -> None:
    assert exhausted(RuntimeError("an illegal memory access was encountered"), "cpu", "x") is None


def test_the_free_memory_of_a_gpu_is_part_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 29, 80 << 30))
    found = exhausted(torch.OutOfMemoryError("CUDA out of memory"), "cuda:1", "x")
    assert found is not None
    assert "the memory of cuda:1 is exhausted (1.5 GiB free)" in found.message


def test_the_free_memory_is_unknown_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: object) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    assert free_bytes("cuda:0") is None
    assert free_bytes("cpu") is None


def test_memory_that_torch_keeps_for_reuse_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 60)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert free_bytes("cuda:0") == 43


class Role:
    @needs_memory_for("evaluation.episodes")
    def evaluate(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def other(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_method_carries_its_settings() -> None:
    assert settings_of(Role().evaluate) == "evaluation.episodes"
    assert settings_of(Role().other) == GENERAL


async def test_the_compute_thread_reports_exhausted_memory_with_the_settings_of_the_function() -> None:
    compute = ComputeThread()
    with pytest.raises(ResourceExhausted, match=r"lower evaluation\.episodes"):
        await compute.run(Role().evaluate)
    with pytest.raises(ResourceExhausted, match=r"replay_capacity"):
        await compute.run(Role().other)
    assert await compute.run(lambda: 3) == 3
    compute.close()


async def test_the_compute_thread_leaves_other_errors_as_they_are() -> None:
    def fail() -> None:
        raise RuntimeError("something else")

    compute = ComputeThread()
    with pytest.raises(RuntimeError, match="something else"):
        await compute.run(fail)
    compute.close()


def test_the_signs_are_those_of_messages_not_of_words() -> None:
    assert all(len(sign.split()) > 1 or "_" in sign for sign in memory_errors.SIGNS)
