"""A pod that trains reports the use of its GPUs, from a driver that is replaced by a table."""

from functools import partial

import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml
from scripted import only_completion, run

from agentpod.gpu_sampler import GpuSampler
from agentpod.learner import leader
from podrace.gpus import sample_gpus
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.mark.parametrize("lost", [False, True])
async def test_a_training_pod_reports_its_gpus_and_finishes_also_if_the_driver_fails(
    mesh, make_spec, make_assignment, monkeypatch, lost
):
    nvml = FakeNvml(FakeGpu("GPU-a", "0", free=30 * GIB, utilization=63, lost=lost))
    # The pod itself computes on the CPU.
    monkeypatch.setattr(
        leader, "GpuSampler", lambda gpus: GpuSampler(["GPU-a"], sample=partial(sample_gpus, nvml=nvml))
    )
    assert await run(mesh, make_assignment(make_spec(steps=32_768))) == 0
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED
    reported = [use for renewal in mesh.orchestrator.renewals for use in renewal.progress.gpus]
    expected = pb.GpuUse(uuid="GPU-a", utilization_percent=63, memory_used_bytes=50 * GIB, memory_total_bytes=80 * GIB)
    assert all(use == expected for use in reported)
    assert bool(reported) != lost
