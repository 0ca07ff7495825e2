"""What is read is judged alike on every machine, and every problem has a remedy."""

from dataclasses import replace
from typing import Any

import pytest

from podrace.cli.doctor import cluster, judgement
from podrace.cli.doctor.diagnosis import Diagnosis, Severity, exit_code, report_value, summary
from podrace.cli.doctor.readings import (
    ClusterReading,
    HomeReading,
    MachineReading,
    ManifestReading,
    PortReading,
    ServerReading,
    StoreReading,
)
from podrace.gpus import Gpu, Reading
from podrace.qualification.findings import Finding, Grade

GIB = 1 << 30
GOOD = MachineReading("linux", 2.0, 8 * GIB, 6 * GIB, 4 * GIB, 4096, "/tmp/podrace-0123abcd")
HOME = HomeReading("/h", "", exists=True, free_bytes=20 * GIB)
SERVER = ServerReading("h:1", "", "0.1.0", 0.1, "process")
ALL_RIGHTS = dict.fromkeys([*cluster.RIGHTS, *cluster.WISHES], True)


def severities(lines: Any) -> dict[str, Severity]:
    """The worst severity of each name."""
    order = list(Severity)
    found: dict[str, Severity] = {}
    for line in lines:
        assert bool(line.remedy) == (line.severity is not Severity.OK), line
        found[line.name] = max(found.get(line.name, Severity.OK), line.severity, key=order.index)
    return found


def test_a_machine_with_enough_of_everything_is_ok() -> None:
    assert set(severities(judgement.judge_machine(GOOD)).values()) == {Severity.OK}


@pytest.mark.parametrize(
    ("change", "name", "severity"),
    [
        ({"platform": "darwin"}, "system", Severity.ERROR),
        ({"cores": 0.5}, "cores", Severity.WARNING),
        ({"available_bytes": GIB // 2}, "memory", Severity.WARNING),
        ({"shared_memory_bytes": 64 << 20}, "shared memory", Severity.WARNING),
        ({"shared_memory_bytes": None}, "shared memory", Severity.ERROR),
        ({"open_files": 256}, "open files", Severity.WARNING),
        ({"open_files": -1}, "open files", Severity.OK),
        ({"runtime_folder": "/" + 80 * "a"}, "runtime folder", Severity.WARNING),
    ],
    ids=["system", "cores", "memory", "shm of docker", "no shm", "few files", "unlimited files", "long path"],
)
def test_each_limit_of_a_machine_is_found(change: dict[str, Any], name: str, severity: Severity) -> None:
    found = severities(judgement.judge_machine(replace(GOOD, **change)))
    assert found.pop(name) is severity
    assert set(found.values()) == {Severity.OK}


def packages(versions: dict[str, str], *, remote: bool = False) -> list[Diagnosis]:
    known = {"podrace": "0.1.0", "python": "3.11.2", **versions}
    extras = {"minio": ["minio"], "plots": ["matplotlib"]}
    return list(judgement.judge_packages(known, ["numpy", "torch"], extras, remote=remote))


def test_a_machine_that_trains_needs_pytorch_and_a_client_does_not() -> None:
    assert severities(packages({"numpy": "2.1"}))["training"] is Severity.ERROR
    assert severities(packages({"numpy": "2.1"}, remote=True))["training"] is Severity.OK
    assert severities(packages({"numpy": "2.1", "torch": "2.13"}))["training"] is Severity.OK


def test_extras_are_listed_by_whether_all_their_packages_are_installed() -> None:
    assert packages({"matplotlib": "3.9"})[-1].found == "plots; not installed: minio"


def test_no_gpu_is_ok_and_a_driver_that_does_not_answer_is_an_error() -> None:
    assert severities(judgement.judge_gpus(Reading())) == {"GPUs": Severity.OK}
    assert severities(judgement.judge_gpus(Reading(problems=("no answer",)))) == {"driver": Severity.ERROR}


def test_a_faulty_gpu_is_an_error() -> None:
    gpu = Gpu("GPU-1", "H100", 0, 80 * GIB, 79 * GIB)
    assert judgement.judge_gpu(gpu).severity is Severity.OK
    assert judgement.judge_gpu(replace(gpu, fault="replace it")).severity is Severity.ERROR


@pytest.mark.parametrize(
    ("grade", "severity"),
    [
        (Grade.PASS, Severity.OK),
        (Grade.SLOW, Severity.WARNING),
        (Grade.FAIL, Severity.ERROR),
        (Grade.ABSENT, Severity.OK),
    ],
)
def test_findings_of_a_qualification_keep_their_meaning(grade: Grade, severity: Severity) -> None:
    found = judgement.judge_finding(Finding("machine", "NCCL", grade, "2.28", "2.30", remedy="install it"))
    assert (found.area, found.name, found.severity) == ("GPU", "NCCL", severity)
    assert found.remedy == ("" if severity is Severity.OK else "install it")


def test_a_home_that_cannot_be_used_is_an_error_and_a_full_disk_a_warning() -> None:
    assert set(severities(judgement.judge_home(HOME)).values()) == {Severity.OK}
    assert severities(judgement.judge_home(replace(HOME, problem="is a file"))) == {"folder": Severity.ERROR}
    assert severities(judgement.judge_home(replace(HOME, free_bytes=GIB)))["disk"] is Severity.WARNING


@pytest.mark.parametrize(
    ("seconds", "severity"),
    [(0.0, Severity.OK), (-20.0, Severity.OK), (60.0, Severity.WARNING), (-400.0, Severity.ERROR)],
)
def test_clocks_may_differ_by_half_a_minute(seconds: float, severity: Severity) -> None:
    assert severities(judgement.judge_store(StoreReading("s", "", skew_seconds=seconds)))["clock"] is severity
    assert severities(judgement.judge_server(replace(SERVER, skew_seconds=seconds), "0.1.0"))["clock"] is severity


def test_a_store_that_cannot_be_used_is_an_error() -> None:
    assert severities(judgement.judge_store(StoreReading("s", "refused"))) == {"access": Severity.ERROR}


def test_a_port_in_use_is_a_warning_because_an_embedded_mesh_needs_none() -> None:
    assert judgement.judge_port(PortReading("orchestrator", 50051, free=True)).severity is Severity.OK
    assert judgement.judge_port(PortReading("orchestrator", 50051, free=False)).severity is Severity.WARNING


def test_a_server_that_does_not_answer_is_an_error_and_another_version_a_warning() -> None:
    assert severities(judgement.judge_server(replace(SERVER, problem="no answer"), "0.1.0")) == {
        "access": Severity.ERROR
    }
    assert severities(judgement.judge_server(SERVER, "0.2.0"))["version"] is Severity.WARNING
    unknown = list(judgement.judge_server(replace(SERVER, skew_seconds=None), "0.1.0"))
    assert set(severities(unknown).values()) == {Severity.OK}


def test_a_missing_right_is_an_error_and_a_missing_view_of_the_cluster_a_warning() -> None:
    def judged(**denied: bool) -> set[Severity]:
        reading = ClusterReading("training", "", "v1.37", ALL_RIGHTS | denied)
        return {each.severity for each in judgement.judge_cluster(reading, cluster.WISHES)}

    assert judged() == {Severity.OK}
    assert judged(**{"list nodes": False}) == {Severity.OK, Severity.WARNING}
    assert judged(**{"create jobs": False}) == {Severity.OK, Severity.ERROR}
    missing = judgement.judge_cluster(ClusterReading("training", "refused"), cluster.WISHES)
    assert [each.severity for each in missing] == [Severity.ERROR]


def test_manifests_that_cannot_be_rendered_are_an_error() -> None:
    assert judgement.judge_manifests(ManifestReading("m", "no such key")).severity is Severity.ERROR
    assert judgement.judge_manifests(ManifestReading("m", "", 4, checked_by_cluster=True)).severity is Severity.OK


def test_only_an_error_fails_the_command() -> None:
    lines = [Diagnosis("a", "n", severity, "") for severity in (Severity.OK, Severity.WARNING, Severity.WARNING)]
    assert (exit_code(lines), summary(lines)) == (0, "2 warnings")
    lines.append(Diagnosis("a", "n", Severity.ERROR, "", "repair it"))
    assert (exit_code(lines), summary(lines)) == (1, "1 error, 2 warnings")
    assert summary(lines[:1]) == "no problems found in 1 check"
    value = report_value(lines)
    assert value["healthy"] is False
    assert value["diagnoses"][-1] == {  # type: ignore[index]
        "area": "a",
        "name": "n",
        "severity": "error",
        "found": "",
        "remedy": "repair it",
    }
