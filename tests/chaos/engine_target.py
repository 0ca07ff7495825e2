"""Injects faults into a mesh in containers of the Docker Engine of this machine: Compose, or a Kubernetes node.

Needs root: faults are signals to processes of containers, packet filters in their network namespaces, and small disks.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from chaos_faults import CLASSES, Fault
from chaos_target import ask_environment, cut, filled, send, slow, small_disk, stop
from compose_stack import FILES, Stack, environment_of, running
from homes import wait_for
from k8s_mesh import (
    ADDRESSES,
    AGENT_PODS,
    KUBECTL,
    PODRACE,
    deployed,
    make_certificates,
    make_data,
    write_overlay,
)

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse

DISKS = {"store": 1024, "leaderboard": 128, "orchestrator": 128}
"""Services whose disks are small, with their size in MiB."""
USER = 10001
PORTS = {"orchestrator": 50051, "leaderboard": 50052}
SERVICES = (*PORTS, "store")
CONTAINER_SECONDS = 120.0
END_SECONDS = 120.0
COMMAND_SECONDS = 120.0
NODE_SECONDS = 90.0
"""Time in which a cluster notices that a kubelet is stopped: by default after 40 to 50 s, in the testbed after 10 s."""
STORE = "minio+http://{host}:9000/podrace"
ENVIRONMENT = Path(__file__).parent / "sleepy_environment.py"
KUBELET = "kubelet"
FOLDERS = """
import glob
patterns = "/tmp/podrace*/pods/*", "/tmp/podrace-code-*/*", "/tmp/podrace-plugins-*/*"
print(sum(len(glob.glob(pattern)) for pattern in patterns))
"""
"""Counts the folders of pods and of plugins in a container of a service."""


def output(*command: str, environ: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Runs a command and returns its output."""
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=COMMAND_SECONDS)
    assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return done.stdout


class EngineTarget(ABC):
    """A mesh whose containers run on the engine of this machine."""

    name: str
    disks: Path
    faults: Path
    unprotected = ()

    def __init__(self) -> None:
        self.classes: Sequence[tuple[str, str]] = CLASSES[self.name]
        self._tournament_id = ""

    @abstractmethod
    def channel(self, service: str) -> grpc.Channel:
        """See Target."""

    @abstractmethod
    def labels(self, role: str) -> Sequence[str]:
        """Labels of the containers of a service or of a role of pods."""

    @abstractmethod
    def objects(self) -> int:
        """Number of containers, volumes, Jobs and the like of pods that exist."""

    @abstractmethod
    def verify(self) -> Mapping[str, Any]:
        """What `podrace store verify` reports about the checkpoint store; AssertionError if it fails."""

    def verified(self) -> Mapping[str, Any]:
        """The same, as soon as a store that has just been restarted answers."""

        def attempt() -> Mapping[str, Any] | None:
            try:
                return self.verify()
            except AssertionError as error:
                print(error, file=sys.stderr, flush=True)
                return None

        report: Mapping[str, Any] = wait_for(attempt, CONTAINER_SECONDS, what="a report on the store")
        return report

    def left_behind(self) -> int:
        """Number of things that are left: objects of pods, unfinished uploads, and temporary folders of services."""
        folders = (output("docker", "exec", self.container(role), "python", "-c", FOLDERS) for role in PORTS)
        return self.objects() + int(self.verified()["unfinished_writes"]) + sum(map(int, folders))

    def start(self, specification: str) -> str:
        """See Target."""
        spec = parse(tomllib.loads(specification), source="chaos")
        request = pb.CreateTournamentRequest(request_id="chaos", spec=spec)
        self._tournament_id = str(self._call("CreateTournament", request).tournament.tournament_id)
        return self._tournament_id

    def finish(self) -> Mapping[str, int]:
        """See Target."""
        request = pb.CancelTournamentRequest(request_id="end", tournament_id=self._tournament_id, reason="the end")
        self._call("CancelTournament", request)
        deadline = time.monotonic() + END_SECONDS
        while self.left_behind() and time.monotonic() < deadline:
            time.sleep(1.0)
        return {"corrupt_checkpoints": len(self.verified()["damage"]), "left_behind": self.left_behind()}

    def _call(self, method: str, request: Any) -> Any:
        with self.channel("orchestrator") as channel:
            stub = pb_grpc.OrchestratorServiceStub(channel)
            return getattr(stub, method)(request, timeout=CONTAINER_SECONDS, wait_for_ready=True)

    # --- containers -------------------------------------------------------------------------------------------

    def container(self, role: str) -> str:
        """Id of a running container of a service or a role."""

        def found() -> str:
            filters = [part for label in self.labels(role) for part in ("--filter", f"label={label}")]
            listed = output("docker", "ps", "--quiet", "--filter", "status=running", *filters, check=False).split()
            return listed[0] if listed else ""

        container: str = wait_for(found, CONTAINER_SECONDS, what=f"a container of {role}")
        return container

    def pid(self, role: str) -> int:
        """Process 1 of a container, as this machine numbers it."""
        return int(output("docker", "inspect", "--format", "{{.State.Pid}}", self.container(role)))

    def pids(self, role: str) -> list[int]:
        """All processes of a container."""
        return [int(line) for line in output("docker", "top", self.container(role), "-o", "pid").split()[1:]]

    # --- faults -----------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """See Target."""
        if fault.kind == "kill":
            send([self.pid(fault.target)], signal.SIGKILL)
        elif fault.kind == "slow":
            slow(self.pids(fault.target), fault.seconds)
        elif fault.kind == "cut":
            cut(self.pid(fault.target), fault.seconds)
        elif fault.kind in ("hold", "memory"):
            ask_environment(self.faults, fault.kind, fault.seconds)
        elif fault.kind == "full":
            with filled(self.disks / fault.target):
                time.sleep(fault.seconds)
        else:
            self.inject_own(fault)

    def acknowledged(self) -> Mapping[str, float]:
        """See Target: the engine removes the log of a container with it."""
        return {}

    @abstractmethod
    def inject_own(self, fault: Fault) -> None:
        """Lets a fault happen that is not the same everywhere; raises NotInjected if it cannot."""


class ComposeTarget(EngineTarget):
    """The mesh of deploy/compose."""

    name = "compose"

    def __init__(self, stack: Stack, disks: Path) -> None:
        super().__init__()
        self._stack, self.disks, self.faults = stack, disks, stack.reports

    def channel(self, service: str) -> grpc.Channel:
        """See Target."""
        return grpc.secure_channel(self._stack.address(service), self._stack.credentials)

    def labels(self, role: str) -> Sequence[str]:
        """See EngineTarget."""
        project = self._stack.project
        if role in SERVICES:
            return (f"com.docker.compose.project={project}", f"com.docker.compose.service={role}")
        return (f"podrace.scope={project}", f"podrace.role={role}")

    def inject_own(self, fault: Fault) -> None:
        """See EngineTarget."""
        if fault.kind == "restart":
            self._stack.compose("restart", "--timeout", "30", fault.target)
        elif fault.kind == "lose":
            pod = output(
                "docker", "inspect", "--format", '{{index .Config.Labels "podrace.pod"}}', self.container("learner")
            )
            scope = f"label=podrace.scope={self._stack.project}"
            found = output(
                "docker", "ps", "--all", "--quiet", "--filter", scope, "--filter", f"label=podrace.pod={pod.strip()}"
            )
            output("docker", "rm", "--force", "--volumes", *found.split(), check=False)
        else:
            container = self.container(fault.target)
            self._disturb(fault.kind, container, fault.seconds)

    def _disturb(self, kind: str, container: str, seconds: float) -> None:
        """Freezes a container, or takes it from its network, for a time. It may be gone at the end."""
        if kind == "stop":
            output("docker", "pause", container)
            time.sleep(seconds)
            output("docker", "unpause", container, check=False)
            return
        network = f"{self._stack.project}_default"
        template = f'{{{{json (index .NetworkSettings.Networks "{network}").Aliases}}}}'
        aliases = json.loads(output("docker", "inspect", "--format", template, container)) or []
        output("docker", "network", "disconnect", network, container)
        time.sleep(seconds)
        named = [part for alias in aliases for part in ("--alias", alias)]
        output("docker", "network", "connect", *named, network, container, check=False)

    def objects(self) -> int:
        """See EngineTarget."""
        scope = f"label=podrace.scope={self._stack.project}"
        return len(self._stack.run("ps", "--all", "--quiet", "--filter", scope).split()) + len(self._stack.volumes())

    def verify(self) -> Mapping[str, Any]:
        """See EngineTarget."""
        options = ("--rm", "--no-deps", "-T", "--entrypoint", "podrace", "bucket")
        store = STORE.format(host="store")
        found: Mapping[str, Any] = json.loads(self._stack.compose("run", *options, "store", "verify", store, "--json"))
        return found


class ClusterTarget(EngineTarget):
    """The overlay `local` on a cluster whose node is this machine."""

    name = "kubernetes"

    def __init__(self, namespace: str, certificates: Path, data: Path) -> None:
        super().__init__()
        self._namespace, self.disks, self.faults = namespace, data, data / "reports"
        folder = certificates / "operator/operator"
        content = [(folder / file).read_bytes() for file in ("ca.crt", "tls.key", "tls.crt")]
        self._credentials = grpc.ssl_channel_credentials(*content)
        if not kubelets():
            self.classes = tuple(one for one in self.classes if one[0] != "absent")

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Runs kubectl in the namespace."""
        return output(KUBECTL, "--namespace", self._namespace, *arguments, check=check)

    def channel(self, service: str) -> grpc.Channel:
        """See Target."""
        return grpc.secure_channel(f"{ADDRESSES[service]}:{PORTS[service]}", self._credentials)

    def labels(self, role: str) -> Sequence[str]:
        """See EngineTarget."""
        return (f"io.kubernetes.pod.namespace={self._namespace}", f"io.kubernetes.container.name={role}")

    def inject_own(self, fault: Fault) -> None:
        """See EngineTarget."""
        if fault.kind == "stop":
            stop(self.pids(fault.target), fault.seconds)
        elif fault.kind == "absent":
            self._lose_node()
        elif fault.kind == "restart":
            self.kubectl("delete", "pod", f"podrace-{fault.target}-0", "--wait=false")
        elif fault.target == "Job":
            (name, *_) = self.kubectl("get", "jobs", "-l", AGENT_PODS, "-o", "name").split()
            self.kubectl("delete", name, "--wait=false")
        else:
            (name, *_) = self.kubectl("get", "pods", "-l", AGENT_PODS, "-o", "name").split()
            self.kubectl("delete", name, "--force", "--grace-period=0", "--wait=false")

    def _lose_node(self) -> None:
        """Stops the kubelet until the node is not ready."""
        wait_for(self._node_is_ready, NODE_SECONDS, what="a node that is ready")
        stopped = kubelets()
        send(stopped, signal.SIGSTOP)
        try:
            wait_for(lambda: not self._node_is_ready(), NODE_SECONDS, what="a node that is not ready")
        finally:
            send(stopped, signal.SIGCONT)

    def _node_is_ready(self) -> bool:
        template = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "nodes", "-o", f"jsonpath={template}") == "True"

    def objects(self) -> int:
        """See EngineTarget."""
        listed = self.kubectl("get", "jobs,configmaps,secrets", "-l", "podrace/scope=podrace", "-o", "name")
        return len(listed.split()) + len(self.kubectl("get", "pods", "-l", AGENT_PODS, "-o", "name").split())

    def verify(self) -> Mapping[str, Any]:
        """See EngineTarget."""
        keys = {"PODRACE_STORE_ACCESS_KEY": "local-access-key", "PODRACE_STORE_SECRET_KEY": "local-secret-key"}
        store = STORE.format(host=ADDRESSES["store"])
        answer = output(PODRACE, "store", "verify", store, "--json", environ={**os.environ, **keys})
        found: Mapping[str, Any] = json.loads(answer)
        return found


def kubelets() -> list[int]:
    """Returns the processes of the node's kubelet on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == KUBELET:
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def small_disks(folder: Path) -> Iterator[None]:
    """Mounts a small disk for each service of DISKS."""
    with contextlib.ExitStack() as stack:
        for name, mebibytes in DISKS.items():
            path = stack.enter_context(small_disk(folder / name, mebibytes))
            assert path, "this user may not mount file systems"
            os.chown(path, USER, USER)
        yield


@contextlib.contextmanager
def composed(folder: Path) -> Iterator[ComposeTarget]:
    """Yields a mesh of deploy/compose; removes it at the end."""
    folder.chmod(0o755)
    project, disks = f"podrace-chaos-{os.getpid()}", folder / "disks"
    disks.mkdir()
    (folder / "stack").mkdir()
    environment = environment_of(project, folder / "stack", [ENVIRONMENT]) | {"PODRACE_CHAOS_DISKS": str(disks)}
    files = (*FILES, "tests/engine/compose.chaos.yaml")
    stack = Stack(project, environment, reports=folder / "stack/reports", files=files)
    with small_disks(disks), running(stack, "orchestrator"):
        yield ComposeTarget(stack, disks)


@contextlib.contextmanager
def on_kubernetes(folder: Path) -> Iterator[ClusterTarget]:
    """Yields a mesh of the overlay `local` in a new namespace; deletes it at the end."""
    folder.chmod(0o755)
    data, certificates, overlay = folder / "data", folder / "certs", folder / "overlay"
    for each in (data, overlay):
        each.mkdir()
    make_data(data)
    make_certificates(certificates, {name: ADDRESSES[name] for name in PORTS})
    namespace = f"podrace-chaos-{os.getpid()}"
    write_overlay(overlay, namespace, data, [ENVIRONMENT])
    with small_disks(data), deployed(namespace, overlay, certificates):
        yield ClusterTarget(namespace, certificates, data)
