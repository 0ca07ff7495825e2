"""The use of GPUs is sampled in a thread. A driver that fails or hangs delays neither a report nor the training."""

import threading
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import pytest
import structlog.testing
from fake_nvml import GIB, FakeGpu, FakeNvml
from prometheus_client import REGISTRY

from agentpod.gpu_sampler import LARGEST_MEMORY, MOST_GPUS, GpuSampler, use_of
from agentpod.learner.progress_reporter import ProgressReporter
from podrace.field_bounds import violations
from podrace.gpus import GpuSample, sample_gpus
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

LIMIT_SECONDS = 30.0


def sampler_of(nvml: FakeNvml, *gpus: str) -> GpuSampler:
    return GpuSampler(gpus, sample=partial(sample_gpus, nvml=nvml))


def test_each_report_has_the_sample_that_the_previous_one_started() -> None:
    gpu = FakeGpu("GPU-a", "0", free=30 * GIB, utilization=63)
    sampler = sampler_of(FakeNvml(gpu), "GPU-a")
    lease = SimpleNamespace(progress=pb.Progress())
    reporter = ProgressReporter(lease, sampler.take)
    reporter.stamp(0.0)
    assert not lease.progress.gpus
    for percent in (10, 20):
        sampler.join(LIMIT_SECONDS)
        gpu.utilization = percent
        reporter.stamp(1.0)
        assert len(lease.progress.gpus) == 1
    sampler.join(LIMIT_SECONDS)
    assert lease.progress.gpus[0] == pb.GpuUse(
        uuid="GPU-a", utilization_percent=10, memory_used_bytes=50 * GIB, memory_total_bytes=80 * GIB
    )
    assert REGISTRY.get_sample_value("podrace_learner_gpu_utilization_percent", {"gpu": "GPU-a"}) == 20
    assert REGISTRY.get_sample_value("podrace_learner_gpu_memory_used_bytes", {"gpu": "GPU-a"}) == 50 * GIB


def test_a_pod_without_gpus_never_asks_the_driver() -> None:
    def sample(uuids: Sequence[str]) -> Sequence[GpuSample]:
        raise AssertionError("asked")

    sampler = GpuSampler((), sample=sample)
    assert [sampler.take(), sampler.take()] == [[], []]
    assert not any(thread.name == "gpu-sampler" and thread.is_alive() for thread in threading.enumerate())


def test_a_driver_that_fails_is_logged_once_and_reported_again_when_it_answers() -> None:
    gpu = FakeGpu("GPU-a", "0", lost=True)
    sampler = sampler_of(FakeNvml(gpu), "GPU-a")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert sampler.take() == []
            sampler.join(LIMIT_SECONDS)
    (line,) = logs
    assert "GPU is lost" in line["error"]
    gpu.lost = False
    assert sampler.take() == []
    sampler.join(LIMIT_SECONDS)
    assert [use.uuid for use in sampler.take()] == ["GPU-a"]
    sampler.join(LIMIT_SECONDS)


def test_the_metrics_of_a_gpu_that_no_longer_answers_disappear() -> None:
    gpu = FakeGpu("GPU-z", "0", utilization=5)
    sampler = sampler_of(FakeNvml(gpu), "GPU-z")
    seen = []
    for lost in (False, True):
        gpu.lost = lost
        sampler.take()
        sampler.join(LIMIT_SECONDS)
        seen.append(REGISTRY.get_sample_value("podrace_learner_gpu_utilization_percent", {"gpu": "GPU-z"}))
    assert seen == [5, None]


def test_a_driver_that_hangs_delays_no_report_and_is_asked_by_one_thread() -> None:
    answers, asked = threading.Event(), []

    def sample(uuids: Sequence[str]) -> Sequence[GpuSample]:
        asked.append(uuids)
        answers.wait(LIMIT_SECONDS)
        return [GpuSample("GPU-a", 1, 2, 3)]

    sampler = GpuSampler(["GPU-a"], sample=sample)
    try:
        assert [sampler.take() for _ in range(5)] == [[]] * 5
        assert len(asked) <= 1
    finally:
        answers.set()
    sampler.join(LIMIT_SECONDS)
    assert [use.memory_used_bytes for use in sampler.take()] == [2]
    sampler.join(LIMIT_SECONDS)


def request_with(*gpus: pb.GpuUse) -> pb.RenewAssignmentRequest:
    return pb.RenewAssignmentRequest(progress=pb.Progress(gpus=gpus))


def complaints(request: pb.RenewAssignmentRequest) -> list[str]:
    return [one.field for one in violations(request) if "gpus" in one.field]


@pytest.mark.parametrize(
    "sample",
    [GpuSample("GPU-a", 101, 1 << 62, 1 << 62), GpuSample("GPU-a", -1, -1, -1), GpuSample("MIG-a", None, None, None)],
)
def test_what_a_pod_reports_is_within_the_bounds_of_the_contract(sample: GpuSample) -> None:
    assert not complaints(request_with(*[use_of(sample)] * MOST_GPUS))


@pytest.mark.parametrize(
    "uses",
    [
        [pb.GpuUse(uuid="GPU-a", utilization_percent=101)],
        [pb.GpuUse(uuid="GPU-a", memory_used_bytes=2 * LARGEST_MEMORY)],
        [pb.GpuUse(uuid="GPU-a", memory_total_bytes=2 * LARGEST_MEMORY)],
        [pb.GpuUse(uuid="x" * 257)],
        [pb.GpuUse(uuid="a\x1b[31m")],
        [pb.GpuUse(uuid="GPU-a")] * (MOST_GPUS + 1),
    ],
)
def test_values_of_a_foreign_pod_out_of_bounds_are_refused(uses: list[pb.GpuUse]) -> None:
    assert complaints(request_with(*uses))


def test_a_pod_with_more_gpus_reports_the_first_ones() -> None:
    names = [f"GPU-{index}" for index in range(MOST_GPUS + 3)]
    sampler = sampler_of(FakeNvml(*(FakeGpu(name, name) for name in names)), *names)
    sampler.take()
    sampler.join(LIMIT_SECONDS)
    assert [use.uuid for use in sampler.take()] == names[:MOST_GPUS]
    sampler.join(LIMIT_SECONDS)
