"""Which GPUs the driver reports, and which of them a list of names selects."""

import re

import pytest
from fake_nvml import GIB, DriverNotLoaded, FakeGpu, FakeNvml, NVMLError

from podrace.errors import InvalidArgument, Unavailable
from podrace.gpus import Gpu, GpuSample, check_selection, read_gpus, sample_gpus, select, visible

A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"


def machine() -> FakeNvml:
    """NVML counts another way than the PCI bus, one GPU is partitioned."""
    return FakeNvml(
        FakeGpu("GPU-cc", "00000000:C1:00.0", mig=True, instances={0: "MIG-c0", 3: "MIG-c3"}, errors=2),
        FakeGpu("GPU-aa", "00000000:1B:00.0", mig=None, errors=None, remapped=None),
        FakeGpu("GPU-bb", "00000000:43:00.0", free=10 * GIB, pids=(7, 8)),
    )


def gpus(*models: str) -> list[Gpu]:
    return [Gpu(f"GPU-{index}a{index}", model, index, 80 * GIB, 79 * GIB) for index, model in enumerate(models)]


def test_gpus_are_numbered_in_the_order_of_the_pci_bus_and_instances_replace_a_partitioned_gpu() -> None:
    reading = read_gpus(machine())
    assert [(gpu.uuid, gpu.number) for gpu in reading.gpus] == [
        ("GPU-aa", 0),
        ("GPU-bb", 1),
        ("MIG-c0", 2),
        ("MIG-c3", 2),
    ]
    assert not reading.problems
    assert [gpu.is_instance for gpu in reading.gpus] == [False, False, True, True]
    assert reading.gpus[2].model == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


def test_free_memory_errors_and_processes_are_read_where_the_gpu_reports_them() -> None:
    first, second, instance, _ = read_gpus(machine()).gpus
    assert (first.uncorrected_errors, first.fault, first.pids) == (0, "", ())
    assert (second.free_bytes, second.memory_bytes, second.pids) == (10 * GIB, 80 * GIB, (7, 8))
    assert instance.uncorrected_errors == 2, "errors are counted for the whole GPU"


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ((0, 1, 0, 0), ""),
        ((0, 1, 1, 0), "a faulty row of its memory is remapped at the next reset"),
        ((0, 9, 0, 1), "remapping a faulty row of its memory failed"),
    ],
)
def test_a_gpu_whose_memory_is_faulty_is_marked(rows: tuple[int, int, int, int], fault: str) -> None:
    (gpu,) = read_gpus(FakeNvml(FakeGpu("GPU-a", "0", remapped=rows))).gpus
    assert gpu.fault.startswith(fault)
    assert bool(gpu.fault) == bool(fault)


def test_a_gpu_that_uses_the_memory_of_the_host_is_a_gpu() -> None:
    (gpu,) = read_gpus(FakeNvml(FakeGpu("GPU-a", "0", "NVIDIA GB10", free=None))).gpus
    assert (gpu.uuid, gpu.memory) == ("GPU-a", "host memory")


def test_a_partitioned_gpu_without_instances_and_a_lost_gpu_are_reported() -> None:
    reading = read_gpus(FakeNvml(FakeGpu("GPU-a", "0", mig=True), FakeGpu("GPU-b", "1", lost=True)))
    assert not reading.gpus
    assert sorted(reading.problems) == [
        "GPU 0 is partitioned (MIG), but has no instances: create some with nvidia-smi mig",
        "the GPU with index 1 does not answer: GPU is lost",
    ]


def test_without_a_driver_there_are_no_gpus_and_a_broken_driver_is_reported() -> None:
    assert read_gpus(FakeNvml(refusal=DriverNotLoaded())).problems == ()
    broken = read_gpus(FakeNvml(FakeGpu("GPU-a", "0"), refusal=NVMLError("Driver/library version mismatch")))
    assert not broken.gpus
    assert broken.problems == ("the NVIDIA driver does not answer, so no GPU is used: Driver/library version mismatch",)


def test_a_driver_that_is_loaded_later_is_noticed() -> None:
    nvml = FakeNvml(FakeGpu("GPU-a", "0"), refusal=DriverNotLoaded())
    assert read_gpus(nvml).gpus == ()
    nvml.refusal = None
    assert [gpu.uuid for gpu in read_gpus(nvml).gpus] == ["GPU-a"]


def test_a_driver_that_stops_answering_is_a_problem_and_not_a_machine_without_gpus() -> None:
    nvml = FakeNvml(FakeGpu("GPU-a", "0"))
    assert read_gpus(nvml).answered
    nvml.silence = NVMLError("Timeout")
    silent = read_gpus(nvml)
    assert silent.problems == ("the NVIDIA driver does not answer, so no GPU is used: Timeout",)
    assert not silent.answered
    assert read_gpus(FakeNvml(refusal=DriverNotLoaded())).answered


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, ["GPU-0a0", "GPU-1a1", "GPU-2a2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", ["GPU-2a2", "GPU-0a0"]),
        (" GPU-1a1 , GPU-0a0", ["GPU-1a1", "GPU-0a0"]),
        ("gpu-2", ["GPU-2a2"]),
        ("0,0", ["GPU-0a0"]),
    ],
)
def test_cuda_visible_devices_selects_by_uuid_and_by_number_in_its_own_order(
    value: str | None, chosen: list[str]
) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = visible(gpus(H100, H100, H100), environ)
    assert [gpu.uuid for gpu in found.gpus] == chosen
    assert not found.unknown
    assert not found.ambiguous


def test_instances_are_selected_by_uuid_and_not_by_the_number_of_their_gpu() -> None:
    present = read_gpus(machine()).gpus
    assert [gpu.uuid for gpu in visible(present, {"CUDA_VISIBLE_DEVICES": "MIG-c3,GPU-aa"}).gpus] == [
        "MIG-c3",
        "GPU-aa",
    ]
    assert visible(present, {"CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).ambiguous == ("2",)


def test_numbers_are_ambiguous_between_models_unless_cuda_counts_as_the_pci_bus() -> None:
    mixed = gpus(A100, H100)
    assert visible(mixed, {"CUDA_VISIBLE_DEVICES": "0"}).ambiguous == ("0",)
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [gpu.uuid for gpu in visible(mixed, ordered).gpus] == ["GPU-0a0"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["0", "GPU-9"],
            "KEY = 'V': there is no GPU 'GPU-9'; the driver shows: GPU-0a0 (NVIDIA A100-SXM4-80GB, number 0)",
        ),
        (["GPU-"], "'GPU-'"),
        (["7"], "there is no GPU '7'"),
        (["x"], "there is no GPU 'x'"),
    ],
)
def test_a_name_that_selects_no_gpu_is_refused(names: list[str], message: str) -> None:
    present = gpus(A100, H100)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        check_selection(select(present, names), present, "KEY", "V")


def test_an_ambiguous_number_is_refused_with_what_to_set() -> None:
    present = gpus(A100, H100)
    with pytest.raises(InvalidArgument, match="'1' may mean several GPUs; name them by UUID, or set CUDA_DEVICE_ORDER"):
        check_selection(select(present, ["1"], numbers_are_clear=False), present, "KEY", "1")


def test_the_use_of_the_named_gpus_is_sampled_in_their_order_as_far_as_they_report_it() -> None:
    nvml = FakeNvml(
        FakeGpu("GPU-a", "0", free=30 * GIB, utilization=63),
        FakeGpu("GPU-b", "1", utilization=99),
        FakeGpu("GPU-c", "2", mig=True, instances={1: "MIG-c1"}),
        FakeGpu("GPU-d", "3", "NVIDIA GB10", free=None, utilization=7),
    )
    assert sample_gpus(["MIG-c1", "GPU-a", "GPU-d"], nvml) == (
        GpuSample("MIG-c1", None, 71 * GIB, 80 * GIB),
        GpuSample("GPU-a", 63, 50 * GIB, 80 * GIB),
        GpuSample("GPU-d", 7, None, None),
    )


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        (FakeNvml(refusal=DriverNotLoaded()), "there is no NVIDIA driver"),
        (FakeNvml(FakeGpu("GPU-a", "0"), refusal=NVMLError("version mismatch")), "version mismatch"),
        (FakeNvml(FakeGpu("GPU-a", "0", lost=True)), "GPU is lost"),
    ],
)
def test_a_driver_that_does_not_report_the_use_is_unavailable(nvml: FakeNvml, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        sample_gpus(["GPU-a"], nvml)
