import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentpod.qualification.plane_trials import reach
from agentpod.qualification.plane_trials.reach import ClusterPod, DockerPod, device_of, process_pod
from podrace.processes.identity import boot_id


@pytest.mark.parametrize(
    "line",
    [
        '{"device": "cuda:0", "event": "environments open"}',
        "2026-11-24T00:55:11Z [info     ] environments open              device=cuda:0 lanes=4 pod_id=p1",
    ],
)
def test_the_device_is_that_of_the_last_line_that_names_one(line: str) -> None:
    first = '{"device": "cpu", "event": "environments open"}'
    assert device_of(f'{first}\n{line}\n{{"event": "other", "device": "cpu"}}\n') == "cuda:0"
    assert device_of("nothing") == ""


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_a_pod_of_this_host_is_reached_by_its_folder(tmp_path: Path, child: "subprocess.Popen[bytes]") -> None:
    folder, log = tmp_path / "podrace-1" / "pods" / "p1", tmp_path / "p1.log"
    folder.mkdir(parents=True)
    log.write_text("the log")
    ticks = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    roles = {role: {"pid": child.pid, "start_ticks": ticks} for role in ("learner", "worker-0")}
    (folder / "pod.json").write_text(json.dumps({"boot_id": boot_id(), "roles": roles, "log_path": str(log)}))
    pod = process_pod("p1", tmp_path)
    assert pod
    assert pod.log() == "the log"
    assert pod.worker()
    assert process_pod("p2", tmp_path) is None
    pod.kill("worker-0")
    assert child.wait(10) == -9
    assert pod.worker() is None


class Container:
    """A container of a fake engine."""

    def __init__(self, role: str, calls: list[str]) -> None:
        self.role, self.calls, self.attrs = role, calls, {"State": {"Pid": 5}}

    def logs(self) -> bytes:
        return f"log of {self.role}".encode()

    def kill(self) -> None:
        self.calls.append(f"kill {self.role}")

    def restart(self, timeout: int) -> None:
        assert timeout == 0
        self.calls.append(f"restart {self.role}")


class Engine:
    """The containers of a fake engine."""

    def __init__(self, *roles: str) -> None:
        self.calls: list[str] = []
        self.roles, self.containers = roles, self

    def list(self, filters: dict[str, list[str]]) -> list[Container]:
        pod, role = (label.partition("=")[2] for label in filters["label"])
        assert pod == "p1"
        return [Container(role, self.calls)] if role in self.roles else []


def test_roles_of_a_pod_on_an_engine_are_killed_as_the_engine_can() -> None:
    engine = Engine("learner", "worker-0")
    pod = DockerPod(engine, "p1")
    assert pod.log() == "log of worker-0"
    assert (pod.leader(), pod.worker()) == (5, 5)
    pod.kill("worker-0")
    pod.kill("learner")
    assert engine.calls == ["restart worker-0", "kill learner"]


def test_the_leader_of_a_fused_pod_logs_for_its_worker() -> None:
    pod = DockerPod(Engine("learner"), "p1")
    assert (pod.log(), pod.worker()) == ("log of learner", None)


class Api:
    """A fake cluster."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def read_namespaced_pod_log(self, name: str, namespace: str, container: str) -> str:
        return f"log of {container} of {name} in {namespace}"

    def delete_namespaced_pod(self, name: str, namespace: str, grace_period_seconds: int) -> None:
        self.calls.append((name, namespace, grace_period_seconds))


def test_only_a_pod_that_runs_is_reached_on_a_cluster() -> None:
    def listed(name: str, phase: str, deleted: str | None) -> Any:
        containers = [SimpleNamespace(name="learner"), SimpleNamespace(name="worker-0")]
        metadata = SimpleNamespace(name=name, namespace="n", deletion_timestamp=deleted)
        return SimpleNamespace(
            metadata=metadata, status=SimpleNamespace(phase=phase), spec=SimpleNamespace(containers=containers)
        )

    api = Api()
    pods = [listed("a", "Failed", None), listed("b", "Running", "now"), listed("c", "Running", None)]
    (pod,) = reach._running(api, pods)
    assert pod.name == "c"
    assert pod.log() == "log of worker-0 of c in n"
    assert (pod.leader(), pod.restarts_workers) == ("c", False)
    pod.kill("learner")
    assert api.calls == [("c", "n", 0)]


def test_the_script_kills_the_role_that_it_is_given_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "agentpod.py").write_text("input()")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    started = {
        role: subprocess.Popen(
            ["python", "-m", "agentpod", role],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            env=environ,
            cwd=tmp_path,
        )
        for role in ("worker-of-this-test", "other")
    }
    try:
        subprocess.run([sys.executable, "-c", reach.KILL, "worker-of-this-test"], check=True)
        assert started["worker-of-this-test"].wait(10) == -9
        assert started["other"].poll() is None
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def test_without_launchers_nothing_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert reach.reached("p1") is None


def test_a_pod_of_a_cluster_that_has_one_container_has_no_worker() -> None:
    pod = ClusterPod(Api(), "n", "c", ("learner",))
    assert (pod.worker(), pod.log()) == (None, "log of learner of c in n")
