"""Launchers whose pods a test ends one by one: real processes that sleep, a scripted engine, and a scripted cluster."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any, Protocol

import docker
import psutil
import pytest
from fake_cluster import NAMESPACE, POD_ENVIRONMENT, FakeCluster, node
from fake_docker import Engine
from fake_services import FakeLauncher

from orchestrator.launchers.base import PodEnvironment
from orchestrator.launchers.docker import DockerLauncher
from orchestrator.launchers.kubernetes.jobs import job_name
from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.options import DockerOptions, KubernetesOptions
from orchestrator.launchers.pod_settings import LEADER
from orchestrator.launchers.process.launcher import POD_FILE, ProcessLauncher, read_pod_file
from podrace.telemetry import TelemetryConfig

STAND_IN = Path(__file__).parent / "stand_in"
EXIT_TIMEOUT_SECONDS = 10.0


class Platform(Protocol):
    """A launcher, and what happens to its pods outside of it.

    await platform.prepare()                         # before each reconcile cycle
    await platform.end(pod_id, killed=True)
    """

    launcher: Any
    pods: int
    """Pods that fit."""
    own_capacity: bool
    """Whether the launcher reports what is free, and not the test."""

    async def prepare(self) -> None:
        """Lets what has been requested run."""
        ...

    async def end(self, pod_id: str, *, killed: bool) -> None:
        """Ends the leader of a pod: by SIGKILL or by itself."""
        ...

    async def close(self) -> None:
        """Ends what is left."""
        ...


class Memory:
    """Pods that are entries of a dictionary."""

    pods, own_capacity = 2, False

    def __init__(self) -> None:
        self.launcher = FakeLauncher()

    async def prepare(self) -> None:
        pass

    async def end(self, pod_id: str, *, killed: bool) -> None:
        self.launcher.pods.pop(pod_id)

    async def close(self) -> None:
        pass


class Processes:
    """Pods that are processes of this machine, forked by the stand-in of the fork server."""

    pods, own_capacity = 2, False

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
        monkeypatch.chdir(folder)
        self.folder = folder
        shared = PodEnvironment("unix:/o", "unix:/l", "", folder, folder, "", 60.0, TelemetryConfig())
        memory = folder / "shm"
        memory.mkdir()
        self.launcher = ProcessLauncher(shared, lambda: None, shared_memory=memory)
        (folder / "pods").mkdir(mode=0o700)

    async def prepare(self) -> None:
        pass

    async def end(self, pod_id: str, *, killed: bool) -> None:
        file = read_pod_file(self.folder / "pods" / pod_id / POD_FILE)
        assert file is not None
        leader = file.roles[LEADER]
        leader.signal(signal.SIGKILL if killed else signal.SIGTERM)
        assert await leader.ended(EXIT_TIMEOUT_SECONDS)

    async def close(self) -> None:
        mine = f"socket={self.folder}/forkserver.sock"
        for process in psutil.process_iter(["cmdline"]):
            if mine in (process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        await self.launcher.__aexit__(None, None, None)


class Containers:
    """Pods that are containers of a scripted Docker Engine."""

    pods, own_capacity = 2, False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = Engine()
        monkeypatch.setattr(docker, "from_env", lambda **_: self.engine)
        self.launcher = DockerLauncher(POD_ENVIRONMENT, DockerOptions(), environ={})

    async def prepare(self) -> None:
        pass

    async def end(self, pod_id: str, *, killed: bool) -> None:
        for container in self.engine.running.values():
            if (container.labels["podrace.pod"], container.labels["podrace.role"]) == (pod_id, LEADER):
                container.status = "exited"

    def containers_of(self, pod_id: str) -> dict[str, dict[str, Any]]:
        """Returns what the engine was asked to run for a pod, by role."""
        found = [one for one in self.engine.running.values() if one.labels["podrace.pod"] == pod_id]
        return {one.labels["podrace.role"]: one.arguments for one in found}

    async def close(self) -> None:
        pass


class Cluster:
    """Pods that are Jobs of a scripted API server. One node with three cores, so three pods of one core."""

    pods, own_capacity = 3, True

    def __init__(self, clock: Any) -> None:
        self.cluster = FakeCluster()
        self.cluster.put("nodes", node(cores="3"))
        self.unschedulable: set[str] = set()
        self.launcher = KubernetesLauncher(
            POD_ENVIRONMENT,
            KubernetesOptions(sense_seconds=0.0),
            find=lambda namespace: (self.cluster, NAMESPACE),
            monotonic=clock.monotonic,
        )

    async def prepare(self) -> None:
        """Gives each Job a pod, as the Job controller and the scheduler would."""
        known = {pod["metadata"]["labels"]["podrace/pod"] for pod in self.cluster.objects.get("pods", {}).values()}
        for job in set(self.cluster.jobs()) - known:
            if job in self.unschedulable:
                reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no CPU"}
                self.cluster.give_pod(job, "Pending", at="", conditions=[reason])
            else:
                self.cluster.give_pod(job)

    async def end(self, pod_id: str, *, killed: bool) -> None:
        name = job_name(pod_id)
        self.cluster.end(name, "Failed" if killed else "Complete")
        for pod in self.cluster.objects["pods"].values():
            if pod["metadata"]["labels"]["podrace/pod"] == name:
                pod["status"] = {"phase": "Failed" if killed else "Succeeded"}

    async def close(self) -> None:
        await asyncio.sleep(0)


def platform_of(name: str, folder: Path, clock: Any, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """Returns a platform by its name."""
    if name == "process":
        return Processes(folder, monkeypatch)
    if name == "docker":
        return Containers(monkeypatch)
    return Cluster(clock) if name == "kubernetes" else Memory()
