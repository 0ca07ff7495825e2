"""Which GPUs the process of a role sees, and in which order."""

from pathlib import Path
from typing import Any

import pytest

from agentpod.config import PodConfig
from agentpod.process.gpu_binding import bind_gpus
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.gpus import Gpu, Reading

GIB = 1 << 30


def pod(*gpus: str, **changes: Any) -> PodConfig:
    return PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), layout="separate", gpus=gpus, **changes)


def reading(*uuids: str, free: int = 70 * GIB) -> Reading:
    return Reading(tuple(Gpu(uuid, "H100", index, 80 * GIB, free) for index, uuid in enumerate(uuids)))


def bound(config: PodConfig, role: str, *uuids: str, **environ: str) -> tuple[PodConfig, dict[str, str]]:
    found = bind_gpus(config, role, read=lambda: reading(*uuids), environ=environ)
    return found, environ


def test_a_process_sees_the_gpus_of_its_pod_by_uuid_in_the_order_of_the_configuration() -> None:
    config, environ = bound(pod("GPU-c", "GPU-a"), "learner", "GPU-a", "GPU-b", "GPU-c")
    assert environ == {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert config.gpus == ("GPU-c", "GPU-a")
    assert config.device("learner") == "cuda:0"


def test_numbers_count_the_gpus_that_a_container_shows() -> None:
    config, environ = bound(pod("0", "1"), "worker-0", "GPU-x", "GPU-y")
    assert config.gpus == ("GPU-x", "GPU-y")
    _, environ = bound(pod("0"), "worker-0", "GPU-x", "GPU-y", CUDA_VISIBLE_DEVICES="GPU-y")
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-y"


def test_a_process_sees_only_its_own_instance_of_a_partitioned_gpu() -> None:
    config = pod("MIG-1", "MIG-2", learners=2)
    found, environ = bound(config, "learner-1", "MIG-1", "MIG-2")
    assert environ["CUDA_VISIBLE_DEVICES"] == "MIG-2"
    assert found.device("learner-1") == "cuda:0"


def test_a_pod_without_gpus_does_not_ask_the_driver() -> None:
    environ: dict[str, str] = {}
    assert bind_gpus(pod(), "learner", read=lambda: pytest.fail("asked"), environ=environ) == pod()
    assert environ == {}


def test_a_role_that_sees_no_gpu_does_not_start() -> None:
    with pytest.raises(FailedPrecondition, match="gpus = GPU-a: the driver shows no GPU to worker-0; in a container"):
        bound(pod("GPU-a"), "worker-0")
    with pytest.raises(InvalidArgument, match="gpus = '0,1': there is no GPU '1'"):
        bound(pod("0", "1"), "worker-0", "GPU-a")


def test_a_gpu_that_others_use_is_reported(log_lines: Any) -> None:
    bind_gpus(pod("GPU-a"), "learner", read=lambda: reading("GPU-a", free=20 * GIB), environ={})
    assert [line["event"] for line in log_lines] == [
        "using a GPU",
        "GPU GPU-a is used by other processes too: 20.0 of 80.0 GiB free",
    ]
