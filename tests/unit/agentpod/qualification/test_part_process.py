from pathlib import Path

import pytest

from agentpod.qualification.config import QualificationConfig
from agentpod.qualification.part_process import bench_of, main
from podrace.errors import InvalidArgument
from podrace.gpus import Gpu, Reading
from podrace.qualification.findings import Finding, Grade

GPUS = tuple(Gpu(f"GPU-{digit}23", "H100", number, 80, 79) for number, digit in enumerate("abc"))
CONFIG = QualificationConfig("machine", Path("/f"))


def test_all_visible_gpus_are_examined_in_the_order_of_the_bus() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-c23,GPU-a23"}
    bench = bench_of(CONFIG, read=lambda: Reading(GPUS), environ=environ)
    assert bench.devices == ("cuda:0", "cuda:1")
    assert environ == {"CUDA_VISIBLE_DEVICES": "GPU-c23,GPU-a23", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_named_gpus_are_the_only_ones_that_cuda_sees() -> None:
    environ: dict[str, str] = {}
    config = QualificationConfig("machine", Path("/f"), gpus=("GPU-b",))
    bench = bench_of(config, read=lambda: Reading(GPUS), environ=environ)
    assert [gpu.uuid for gpu in bench.gpus] == ["GPU-b23"]
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-b23"
    assert bench.ends == ("cuda:0",)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="there is no GPU 'GPU-x'"):
        bench_of(QualificationConfig("machine", Path("/f"), gpus=("GPU-x",)), read=lambda: Reading(GPUS), environ={})


def test_one_instance_of_a_partitioned_gpu_is_examined() -> None:
    instances = tuple(Gpu(f"MIG-{number}", "H100 MIG", 0, 10, 9) for number in range(3))
    environ: dict[str, str] = {}
    assert bench_of(CONFIG, read=lambda: Reading(instances), environ=environ).gpus == instances[:1]
    assert environ["CUDA_VISIBLE_DEVICES"] == "MIG-0"


def test_without_a_gpu_the_processor_is_used_and_no_finding_passes() -> None:
    environ: dict[str, str] = {}
    bench = bench_of(CONFIG, read=Reading, environ=environ)
    assert (bench.devices, bench.ends, environ) == (("cpu",), ("cpu",), {})
    assert bench.graded(Finding("machine", "x", Grade.PASS)).grade == Grade.ABSENT


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="unknown part"):
        main(QualificationConfig("os", Path("/f")))
