from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import FakeNvml, NVMLError

from agentpod.qualification.bench import Bench
from agentpod.qualification.machine import GIB, Port, Surveyed, judge, library_problem, ports, survey
from podrace.gpus import Gpu
from podrace.qualification.findings import Finding, Grade

FIRST, SECOND = (Gpu(f"GPU-{digit * 8}", "H100", number, 80 * GIB, 79 * GIB) for number, digit in enumerate("12"))
GOOD = Surveyed(
    gpus=(FIRST, SECOND),
    driver="580.65",
    driver_cuda=13000,
    torch="2.13.0",
    torch_cuda="13.0",
    nccl="2.29.7",
    packages={"cupy-cuda13x": "14.2.0", "warp-lang": "1.19.0", "mujoco-warp": "4.0.0"},
    cuda_names=("11111111", "22222222"),
    peer_pairs=((0, 1, True), (1, 0, True)),
    shm_bytes=64 * GIB,
    shm_free_bytes=60 * GIB,
    locked_bytes=-1,
    namespaces={"pid": "[1]", "ipc": "[2]"},
    ports=(Port("mlx5_0/1", "ACTIVE", "400 Gb/sec (4X NDR)"),),
)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_every_line_passes_on_a_good_machine() -> None:
    assert {finding.grade for finding in judge(GOOD)} == {Grade.PASS}


def test_a_finding_that_did_not_pass_says_what_to_do() -> None:
    for found in (GOOD, Surveyed(), replace(GOOD, shm_free_bytes=0, locked_bytes=65536)):
        assert all(finding.remedy for finding in judge(found) if finding.grade != Grade.PASS)


@pytest.mark.parametrize(
    ("changes", "name", "grade", "remedy"),
    [
        ({"gpus": (replace(FIRST, fault="a faulty row"), SECOND)}, "GPU 0", Grade.FAIL, "replace"),
        ({"gpus": (replace(FIRST, free_bytes=40 * GIB, pids=(7,)), SECOND)}, "GPU 0", Grade.SLOW, "1 processes"),
        ({"driver_cuda": 12080}, "driver", Grade.FAIL, "agentpod-cuda12"),
        ({"driver": "", "driver_cuda": 0}, "driver", Grade.ABSENT, "driver"),
        ({"torch_cuda": ""}, "PyTorch", Grade.FAIL, "install-gpu"),
        ({"packages": {}}, "CuPy", Grade.FAIL, "cupy-cuda13x"),
        ({"packages": {"cupy-cuda12x": "14.2.0"}}, "CuPy", Grade.FAIL, "cupy-cuda13x"),
        ({"nccl": ""}, "NCCL", Grade.ABSENT, "PyTorch"),
        ({"cuda_names": ("22222222", "11111111")}, "names of devices", Grade.FAIL, "PCI_BUS_ID"),
        ({"cuda_names": ()}, "names of devices", Grade.FAIL, "CUDA_VISIBLE_DEVICES"),
        ({"peer_pairs": ((0, 1, False), (1, 0, True))}, "peer access", Grade.SLOW, "host"),
        ({"shm_free_bytes": GIB}, "/dev/shm", Grade.FAIL, "--shm-size"),
        ({"ports": ()}, "InfiniBand", Grade.ABSENT, "sockets"),
        ({"ports": (Port("mlx5_0/1", "DOWN", "1"),)}, "InfiniBand mlx5_0/1", Grade.FAIL, "ibstat"),
        ({"verbs_problem": "libibverbs.so.1: cannot open"}, "libibverbs", Grade.FAIL, "ibverbs-providers"),
        ({"locked_bytes": 65536}, "locked memory", Grade.FAIL, "memlock"),
        ({"problems": ("GPU 1 does not answer",)}, "driver's answer", Grade.FAIL, "dmesg"),
    ],
)  # fmt: skip
def test_each_defect_is_found_and_has_a_remedy(
    changes: dict[str, object], name: str, grade: Grade, remedy: str
) -> None:
    found = by_name(judge(replace(GOOD, **changes)))[name]  # type: ignore[arg-type]
    assert found.grade == grade
    assert remedy in found.remedy


def test_an_instance_of_a_partitioned_gpu_is_named_as_such_and_its_name_is_not_compared() -> None:
    one = replace(FIRST, uuid="MIG-1")
    found = by_name(judge(replace(GOOD, gpus=(one,), cuda_names=("11111111",))))
    assert found["GPU 0"].measured.startswith("instance (MIG) MIG-1")
    assert found["names of devices"].grade == Grade.PASS


def test_a_machine_without_a_gpu_has_no_failure() -> None:
    found = Surveyed(torch="2.13.0+cpu", shm_bytes=GIB, shm_free_bytes=GIB)
    graded = [Bench(Path("/f")).graded(finding) for finding in judge(found)]
    assert {finding.grade for finding in graded} == {Grade.ABSENT}


def test_ports_of_adapters_are_read(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert list(ports(tmp_path)) == [Port("mlx5_0/1", "ACTIVE", "400 Gb/sec (4X NDR)")]
    assert list(ports(tmp_path / "nothing")) == []


def test_a_machine_without_adapters_needs_no_library_for_them() -> None:
    found = by_name(judge(replace(GOOD, ports=(), verbs_problem="libibverbs.so.1: cannot open")))
    assert "libibverbs" not in found


def test_a_library_that_cannot_be_opened_is_named() -> None:
    assert library_problem("libc.so.6") == ""
    assert "libnothing.so.1" in library_problem("libnothing.so.1")


def test_this_machine_is_surveyed_without_a_driver(tmp_path: Path) -> None:
    found = survey(Bench(tmp_path), FakeNvml(refusal=NVMLError("no driver")))
    assert (found.driver, found.driver_cuda) == ("", 0)
    assert found.torch
    assert found.shm_bytes > 0
    assert set(found.namespaces) >= {"pid", "ipc"}
