"""Reaches the processes of pods that a launcher started: on this host, on a Docker Engine, or in a cluster.

Pods are found as an administrator finds them: by what their launcher writes on them, and with the rights of the user
who runs the qualification. The orchestrator is not involved.
"""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentpod.config import LEADER_ROLE
from agentpod.liveness.role_processes import POD_FILE, find_process
from agentpod.qualification.plane_trials.cases import LOGGED_DEVICE, OPENED, WORKER

REQUEST_SECONDS = 20
KILL = """
import os, pathlib, sys
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if path.read_bytes().split(b"\\0")[:4] == [b"python", b"-m", b"agentpod", sys.argv[1].encode()]:
        os.kill(int(path.parent.name), 9)
"""
"""Kills a role in a container that sees the processes of all containers of its pod."""


class ReachedPod(Protocol):
    """A pod whose roles can be read and killed from here. The methods block.

    pod = reached("race-p0")
    pod.kill("worker-0")
    """

    @property
    def launcher(self) -> str:
        """Name of the launcher."""
        ...

    @property
    def restarts_workers(self) -> bool:
        """Whether a worker that was killed is started again in the same pod; otherwise the pod is replaced."""
        ...

    def log(self) -> str:
        """Returns the log of the role that steps environments."""
        ...

    def leader(self) -> object:
        """Returns what identifies the running leader; None if there is none."""
        ...

    def worker(self) -> object:
        """Returns what identifies the process of the worker; None if there is none."""
        ...

    def kill(self, role: str) -> None:
        """Kills a role."""
        ...


def reached(pod_id: str) -> ReachedPod | None:
    """Returns a pod; None if it cannot be reached from here."""
    found = (find(pod_id) for find in FINDERS)
    return next((pod for pod in found if pod), None)


def device_of(log: str) -> str:
    """Returns the device that a worker logged last; empty if it logged none. Pure."""
    found = (LOGGED_DEVICE.search(line) for line in reversed(log.splitlines()) if OPENED in line)
    return next((match[1] for match in found if match), "")


# --- launcher process --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessPod:
    """A pod of the launcher `process` of this user on this host."""

    folder: Path
    """Folder of the pod."""
    launcher: str = "process"
    restarts_workers: bool = True

    def log(self) -> str:
        """See ReachedPod."""
        try:
            return Path(json.loads((self.folder / POD_FILE).read_text())["log_path"]).read_text()
        except (OSError, ValueError, KeyError):
            return ""

    def leader(self) -> object:
        """See ReachedPod."""
        return find_process(self.folder, LEADER_ROLE)

    def worker(self) -> object:
        """See ReachedPod."""
        return find_process(self.folder, WORKER)

    def kill(self, role: str) -> None:
        """See ReachedPod."""
        if process := find_process(self.folder, role):
            process.signal(signal.SIGKILL)


def process_pod(pod_id: str, temporary: Path | None = None) -> ProcessPod | None:
    """Returns a pod of the launcher `process`; None if this user has none of that id here."""
    for path in (temporary or Path(tempfile.gettempdir())).glob(f"podrace-*/pods/{pod_id}/{POD_FILE}"):
        if path.stat().st_uid == os.getuid() and find_process(path.parent, LEADER_ROLE):
            return ProcessPod(path.parent)
    return None


# --- launcher docker ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DockerPod:
    """A pod of the launcher `docker` on the engine of DOCKER_HOST."""

    client: Any
    """A client of the engine."""
    pod_id: str
    launcher: str = "docker"
    restarts_workers: bool = True

    def _container(self, role: str) -> Any:
        labels = {"label": [f"podrace.pod={self.pod_id}", f"podrace.role={role}"]}
        return next(iter(self.client.containers.list(filters=labels)), None)

    def log(self) -> str:
        """See ReachedPod."""
        container = self._container(WORKER) or self._container(LEADER_ROLE)
        return container.logs().decode(errors="replace") if container else ""

    def leader(self) -> object:
        """See ReachedPod."""
        container = self._container(LEADER_ROLE)
        return container and container.attrs["State"]["Pid"]

    def worker(self) -> object:
        """See ReachedPod."""
        container = self._container(WORKER)
        return container and container.attrs["State"]["Pid"]

    def kill(self, role: str) -> None:
        """See ReachedPod. An engine does not start a container again that it was asked to kill, but restarts one."""
        container = self._container(role)
        if container and role == LEADER_ROLE:
            container.kill()
        elif container:
            container.restart(timeout=0)


def docker_pod(pod_id: str) -> DockerPod | None:
    """Returns a pod on the engine of DOCKER_HOST; None without an engine, or the package `docker`, or the pod."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return None
    try:
        pod = DockerPod(docker.from_env(timeout=REQUEST_SECONDS), pod_id)
        return pod if pod._container(LEADER_ROLE) else None
    except (DockerException, OSError):
        return None


# --- launcher kubernetes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterPod:
    """A pod of the launcher `kubernetes` on the cluster of KUBECONFIG."""

    api: Any
    """The API of version `v1`."""
    namespace: str
    name: str
    containers: Sequence[str]
    launcher: str = "kubernetes"
    restarts_workers: bool = False

    def log(self) -> str:
        """See ReachedPod."""
        container = WORKER if WORKER in self.containers else LEADER_ROLE
        return str(self.api.read_namespaced_pod_log(self.name, self.namespace, container=container))

    def leader(self) -> object:
        """See ReachedPod. The Job of a pod that was deleted starts another one of the same id."""
        return self.name

    def worker(self) -> object:
        """See ReachedPod."""
        return self.name if WORKER in self.containers else None

    def kill(self, role: str) -> None:
        """See ReachedPod."""
        from kubernetes.stream import stream

        if role == LEADER_ROLE:
            self.api.delete_namespaced_pod(self.name, self.namespace, grace_period_seconds=0)
            return
        command = ["python", "-c", KILL, role]
        options = {"command": command, "container": role, "stdout": True, "stderr": True, "stdin": False, "tty": False}
        stream(
            self.api.connect_get_namespaced_pod_exec,
            self.name,
            self.namespace,
            _request_timeout=REQUEST_SECONDS,
            **options,
        )


def cluster_pod(pod_id: str) -> ClusterPod | None:
    """Returns a pod on the cluster of KUBECONFIG; None without a cluster, or the package `kubernetes`, or the pod."""
    try:
        from kubernetes import client
        from kubernetes import config as untyped
        from urllib3.exceptions import HTTPError
    except ImportError:
        return None
    config: Any = untyped
    try:
        config.load_kube_config()
        api = client.CoreV1Api()
        labels = f"podrace/pod={pod_id}"
        found = api.list_pod_for_all_namespaces(label_selector=labels, _request_timeout=REQUEST_SECONDS).items
    except (config.ConfigException, client.ApiException, HTTPError, OSError):
        return None
    return next(_running(api, found), None)


def _running(api: Any, pods: Sequence[Any]) -> Iterator[ClusterPod]:
    for pod in pods:
        if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp:
            containers = tuple(container.name for container in pod.spec.containers)
            yield ClusterPod(api, pod.metadata.namespace, pod.metadata.name, containers)


FINDERS: Sequence[Callable[[str], ReachedPod | None]] = (process_pod, docker_pod, cluster_pod)
