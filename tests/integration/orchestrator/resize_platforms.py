"""Launchers whose pods a test ends one by one: real processes that sleep, a scripted engine, and a scripted cluster."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
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
from orchestrator.launchers.kubernetes.nodes import FINISHED_PHASES, requests_of
from orchestrator.launchers.options import DockerOptions, KubernetesOptions
from orchestrator.launchers.pod_settings import LEADER
from orchestrator.launchers.process.launcher import ProcessLauncher
from orchestrator.launchers.process.pod_files import POD_FILE, read_pod_file
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
    """Pods that are Jobs of a scripted API server. By default one node with three cores, so three pods of one core."""

    own_capacity = True

    def __init__(self, clock: Any, nodes: Sequence[int] = (3,)) -> None:
        """Creates the cluster; `nodes` has the cores of each node."""
        self.cluster = FakeCluster()
        self.nodes = {f"n{number}": cores for number, cores in enumerate(nodes, 1)}
        for name, cores in self.nodes.items():
            self.cluster.put("nodes", node(name, cores=str(cores)))
        self.pods = sum(nodes)
        self.unschedulable: set[str] = set()
        self.launcher = KubernetesLauncher(
            POD_ENVIRONMENT,
            KubernetesOptions(sense_seconds=0.0),
            find=lambda namespace: (self.cluster, NAMESPACE),
            monotonic=clock.monotonic,
        )

    async def prepare(self) -> None:
        """Gives each Job a pod, as the Job controller and the scheduler would: on the node with the most free cores."""
        pods = self.cluster.objects.setdefault("pods", {})
        bound = {pod["metadata"]["labels"]["podrace/pod"]: name for name, pod in pods.items() if node_of(pod)}
        for job in sorted(set(self.cluster.jobs()) - bound.keys()):
            spec = self.cluster.jobs()[job]["spec"]["template"]["spec"]
            at, free = max(self._free_cores().items(), key=lambda item: item[1])
            for waiting in [name for name, pod in pods.items() if pod["metadata"]["labels"]["podrace/pod"] == job]:
                del pods[waiting]
            if job in self.unschedulable or requests_of({"spec": spec}, "").cores > free:
                reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no CPU"}
                self.cluster.give_pod(job, "Pending", at="", conditions=[reason])
            else:
                self.cluster.give_pod(job, at=at)

    def _free_cores(self) -> dict[str, float]:
        free: dict[str, float] = dict(self.nodes)
        for pod in self.cluster.objects["pods"].values():
            if node_of(pod) and pod["status"]["phase"] not in FINISHED_PHASES:
                free[node_of(pod)] -= requests_of(pod, "").cores
        return free

    def places(self) -> dict[str, str]:
        """Returns the node of each running pod, by the name of its Job."""
        pods = self.cluster.objects["pods"].values()
        running = (pod for pod in pods if pod["status"]["phase"] == "Running")
        return {pod["metadata"]["labels"]["podrace/pod"]: node_of(pod) for pod in running}

    async def end(self, pod_id: str, *, killed: bool) -> None:
        name = job_name(pod_id)
        self.cluster.end(name, "Failed" if killed else "Complete")
        for pod in self.cluster.objects["pods"].values():
            if pod["metadata"]["labels"]["podrace/pod"] == name:
                pod["status"] = {"phase": "Failed" if killed else "Succeeded"}

    async def close(self) -> None:
        await asyncio.sleep(0)


def node_of(pod: dict[str, Any]) -> str:
    """Returns the node of a pod; empty if it waits for one."""
    return str(pod["spec"].get("nodeName", ""))


def platform_of(name: str, folder: Path, clock: Any, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """Returns a platform by its name."""
    if name == "process":
        return Processes(folder, monkeypatch)
    if name == "docker":
        return Containers(monkeypatch)
    return Cluster(clock) if name == "kubernetes" else Memory()
