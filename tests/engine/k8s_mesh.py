"""Controls the overlay `local` on a real cluster for tests."""

import asyncio
import json
import os
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import container_spy
import yaml

from podrace import rpc
from podrace.errors import PodraceError
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.resolve import parse
from podrace.tournament.v1 import tournament_pb2

REPOSITORY = Path(__file__).parents[2]
KUBECTL = str(Path(sys.executable).parent / "kubectl")
PODRACE = str(Path(sys.executable).parent / "podrace")
WAIT_SECONDS = 120.0
KUBECTL_SECONDS = 240
ADDRESSES = {
    "orchestrator": "10.96.0.51",
    "leaderboard": "10.96.0.52",
    "store": "10.96.0.53",
    "policy-server": "10.96.0.54",
}
"""Addresses of the services in the overlay `local`, and of the policy server that tests add."""
COMPLETED = tournament_pb2.TOURNAMENT_STATE_COMPLETED
SMALL = {"pod__cores": 0.5, "pod__memory_bytes": 800_000_000}
AGENT_PODS = "app.kubernetes.io/component=agentpod"


@dataclass
class Mesh:
    """The overlay `local` in its own namespace, and a client of its orchestrator."""

    namespace: str
    stub: Any
    reports: Path
    """Folder that user code of the tests writes to."""
    created: list[str] = field(default_factory=list, init=False)
    """Tournaments that this client created."""

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        command = [KUBECTL, "-n", self.namespace, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=KUBECTL_SECONDS)
        except subprocess.TimeoutExpired:
            # An exec that kills its own container sometimes gets no answer from the kubelet.
            assert not check, f"kubectl {' '.join(arguments)}: no answer within {KUBECTL_SECONDS} s"
            return ""
        assert done.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    def names(self, kind: str, labels: str) -> list[str]:
        return [name.partition("/")[2] for name in self.kubectl("get", kind, "-l", labels, "-o", "name").split()]

    def uid(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}", check=False)

    def running(self) -> list[str]:
        found = json.loads(self.kubectl("get", "pods", "-l", AGENT_PODS, "-o", "json"))["items"]
        living = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return [pod["metadata"]["name"] for pod in living if pod["status"]["phase"] == "Running"]

    async def call(self, method: str, request: Any) -> Any:
        return await rpc.call(getattr(self.stub, method), request, deadline_seconds=10.0)

    async def create(self, **changes: Any) -> str:
        values = tomllib.loads((REPOSITORY / "examples" / "cartpole.toml").read_text())
        for path, value in changes.items():
            section, _, key = path.partition("__")
            values.setdefault(section, {})[key] = value
        spec = parse(values, source="test")
        response = await self.call(
            "CreateTournament", pb.CreateTournamentRequest(request_id=uuid.uuid4().hex, spec=spec)
        )
        tournament_id: str = response.tournament.tournament_id
        self.created.append(tournament_id)
        return tournament_id

    async def get(self, tournament_id: str) -> Any:
        return (await self.call("GetTournament", pb.GetTournamentRequest(tournament_id=tournament_id))).tournament

    async def cancel_all(self) -> bool:
        listed = await self.call("ListTournaments", pb.ListTournamentsRequest(page_size=100))
        for tournament in listed.tournaments:
            if tournament.state == tournament_pb2.TOURNAMENT_STATE_RUNNING:
                request = pb.CancelTournamentRequest(
                    request_id=uuid.uuid4().hex, tournament_id=tournament.tournament_id
                )
                await self.call("CancelTournament", request)
        return True

    async def steps(self, tournament_id: str) -> int:
        return int((await self.get(tournament_id)).environment_steps)

    async def events(self, tournament_id: str, kind: str) -> list[str]:
        response = await self.call("ListEvents", pb.ListEventsRequest(tournament_id=tournament_id, page_size=1000))
        return [event.message for event in response.events if event.kind == kind]

    async def print_events(self) -> None:
        """Prints the events of the tournaments that this client created."""
        for tournament_id in self.created:
            request = pb.ListEventsRequest(tournament_id=tournament_id, page_size=1000)
            for event in (await self.call("ListEvents", request)).events:
                print(f"{event.time.ToJsonString()} {event.kind}: {event.message}")


async def until(condition: Callable[[], Any], what: str, *, seconds: float = WAIT_SECONDS) -> float:
    """Waits for a condition, given as a function or a coroutine function; returns how long it took, in seconds."""
    begin = time.monotonic()
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            try:
                found = await found
            except PodraceError:
                # The orchestrator is being replaced.
                found = None
        if found:
            return time.monotonic() - begin
        assert time.monotonic() - begin < seconds, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(0.2)


async def handed_back(mesh: Mesh, tournament: str) -> bool:
    """Whether the agent was returned by its pod, rather than released when the lease expired."""
    first, *later = await mesh.events(tournament, "agent_assigned")
    return "the next new agent" in first and len(later) == 1 and "no pod holds it" in later[0]


async def grown(mesh: Mesh, tournament: str, beyond: int) -> bool:
    return await mesh.steps(tournament) > beyond


def make_certificates(folder: Path, hosts: Mapping[str, str]) -> None:
    """Makes the certificates of the overlay, valid for further hosts."""
    options = [f"--host={path}={host}" for path, host in hosts.items()]
    subprocess.run([PODRACE, "certs", "make", str(folder), *options], check=True, capture_output=True)


def create_secrets(certificates: Path, namespace: str) -> None:
    """Creates a namespace with the Secrets of the services: a pod without its Secret retries after minutes only."""
    subprocess.run([KUBECTL, "create", "namespace", namespace], check=True, capture_output=True)
    command = [PODRACE, "certs", "secrets", str(certificates), "--namespace", namespace]
    secrets = subprocess.run(command, check=True, capture_output=True).stdout
    subprocess.run([KUBECTL, "apply", "-f", "-"], input=secrets, check=True, capture_output=True)


OWN_IMAGE = "podrace-test/own:1"
"""An image that specifications may name."""


def make_data(folder: Path) -> None:
    """Makes a folder of the node for databases, and one in it for what user code of the tests reports."""
    reports = folder / "reports"
    reports.mkdir()
    # Containers write there; pytest keeps its folders private.
    for each, mode in ((reports, 0o777), (folder, 0o755), (folder.parent, 0o755)):
        if each != Path("/tmp"):
            each.chmod(mode)
    places = {name: f"{ADDRESSES[name]}:{port}" for name, port in container_spy.PORTS.items()}
    (reports / "places.json").write_text(json.dumps(places))


def build_images() -> None:
    """Builds the images of the overlay, or uses those of the last run if PODRACE_IMAGES is `there`."""
    build = ["docker", "compose", "--file", str(REPOSITORY / "tests/engine/images.yaml"), "build"]
    wanted = [["orchestrator", "leaderboard", "store", "postgresql"], ["agentpod"], ["serving"]]
    for services in wanted if os.environ.get("PODRACE_IMAGES") != "there" else []:
        done = subprocess.run([*build, *services], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]


@contextmanager
def deployed(name: str, folder: Path, certificates: Path) -> Iterator[None]:
    """Applies an overlay to its own namespace, and deletes it at the end.

    Args:
        name: Name of the namespace.
        folder: Folder of the overlay.
        certificates: Folder of `make_certificates`.
    """
    create_secrets(certificates, name)
    try:
        apply = subprocess.run([KUBECTL, "apply", "-k", str(folder)], capture_output=True, text=True)
        assert apply.returncode == 0, apply.stderr
        for service in ("store", "leaderboard", "orchestrator"):
            wait = ["rollout", "status", f"statefulset/podrace-{service}", "--timeout=180s"]
            done = subprocess.run([KUBECTL, "-n", name, *wait], capture_output=True, text=True)
            assert done.returncode == 0, f"{service}: {done.stderr}\n{_why(name, service)}"
        yield
    finally:
        subprocess.run([KUBECTL, "delete", "--ignore-not-found", "-k", str(folder)], capture_output=True)


def _why(name: str, service: str) -> str:
    """Returns what the cluster says about the first pod of a service, and the last lines of its containers."""
    pod = f"podrace-{service}-0"
    asked = (["describe", "pod", pod], ["logs", pod, "--all-containers", "--tail=10"])
    answers = [subprocess.run([KUBECTL, "-n", name, *each], capture_output=True, text=True).stdout for each in asked]
    return "\n".join(answer[-4000:] for answer in answers)


def with_modules(data: Path, modules: Sequence[Path]) -> dict[str, Any]:
    """Mounts user code of the tests into the containers of pods, and a folder for its reports."""
    volumes = [
        {"name": "modules", "configMap": {"name": "modules"}},
        {"name": "reports", "hostPath": {"path": str(data / "reports"), "type": "Directory"}},
    ]
    files = [path.name for path in modules]
    mounts = [{"name": "reports", "mountPath": str(container_spy.REPORTS)}]
    mounts += [{"name": "modules", "mountPath": f"/opt/own/{name}", "subPath": name} for name in files]
    changes = [{"op": "add", "path": "/template/spec/volumes/-", "value": value} for value in volumes]
    place = "/template/spec/containers/0/volumeMounts/-"
    changes += [{"op": "add", "path": place, "value": value} for value in mounts]
    return {"target": {"kind": "PodTemplate"}, "patch": json.dumps(changes)}


def tested_image(service: str) -> dict[str, str]:
    """Replaces the image of a service by the one that was built for tests."""
    return {"name": f"podrace/{service}", "newName": f"podrace-test/{service}", "newTag": "local"}


def renamed(kind: str, name: str) -> dict[str, Any]:
    """Renames an object that belongs to no namespace."""
    change = json.dumps([{"op": "replace", "path": "/metadata/name", "value": name}])
    return {"target": {"kind": kind}, "patch": change, "options": {"allowNameChange": True}}


def pod_patch(service: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Merges a specification into that of the pods of a service."""
    patch = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"podrace-{service}"},
        "spec": {"template": {"spec": spec}},
    }
    return {"patch": json.dumps(patch)}


def moved(service: str, data: Path) -> dict[str, str]:
    """Puts what a service stores into a folder of the node."""
    volume = {"name": "data", "hostPath": {"path": str(data / service), "type": "DirectoryOrCreate"}}
    return pod_patch(service, {"volumes": [volume]})


def write_overlay(folder: Path, name: str, data: Path, modules: Sequence[Path]) -> None:
    """Writes the overlay `local` with the namespace, images and folders of this test.

    Args:
        folder: Empty folder.
        name: Name of the namespace.
        data: Folder of `make_data`.
        modules: Modules to mount into the containers of pods, which specifications may name.
    """

    services = ("orchestrator", "leaderboard", "store")
    sources = {path.name: path.read_text() for path in modules}
    modules_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "modules"}, "data": sources}
    (folder / "modules.yaml").write_text(yaml.safe_dump(modules_map))
    allowed = {
        "name": "podrace-orchestrator",
        "behavior": "merge",
        "literals": [
            f"PODRACE_ORCHESTRATOR__ALLOW__MODULES={modules[0].stem}",
            f"PODRACE_ORCHESTRATOR__LAUNCHERS__KUBERNETES__IMAGES={OWN_IMAGE}",
        ],
    }
    overlay = {
        "namespace": name,
        "resources": [os.path.relpath(REPOSITORY / "deploy/k8s/overlays/local", folder), "modules.yaml"],
        "configMapGenerator": [allowed],
        "images": [tested_image(service) for service in (*services, "agentpod")],
        "patches": [
            renamed("ClusterRole", name),
            renamed("ClusterRoleBinding", name),
            *(moved(service, data) for service in services),
            with_modules(data, modules),
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))


def write_serving_overlay(folder: Path, name: str, tournament: str) -> None:
    """Writes the component `serving` for one tournament, without what Kubernetes 1.20 does not have.

    That is the autoscaler and the disruption budget, whose versions are newer, and probes by gRPC.
    """
    container = {
        "name": "serving",
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "readinessProbe": {
            "grpc": None,
            "httpGet": {"path": "/v2/health/ready", "port": "http", "scheme": "HTTPS"},
            "periodSeconds": 2,
        },
    }
    replicas = {"replicas": 1, "template": {"spec": {"dnsPolicy": "Default", "containers": [container]}}}
    settings = {
        "PODRACE_SERVING__ORCHESTRATOR": f"{ADDRESSES['orchestrator']}:50051",
        "PODRACE_SERVING__TOURNAMENT": tournament,
    }
    changes = [
        ("v1", "ConfigMap", {"data": settings}),
        ("apps/v1", "Deployment", {"spec": replicas}),
        ("v1", "Service", {"spec": {"clusterIP": ADDRESSES["policy-server"]}}),
        ("autoscaling/v2", "HorizontalPodAutoscaler", {"$patch": "delete"}),
        ("policy/v1", "PodDisruptionBudget", {"$patch": "delete"}),
    ]
    patches = [
        {"patch": json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "podrace-serving"}, **change})}
        for version, kind, change in changes
    ]
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": name,
        "components": [os.path.relpath(REPOSITORY / "deploy/k8s/components/serving", folder)],
        "images": [{"name": "podrace/serving", "newName": "podrace-test/serving", "newTag": "local"}],
        "patches": patches,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))


def qualify_job(*settings: str) -> dict[str, Any]:
    """Returns the Job of deploy/k8s/qualify.yaml for a node of few resources and no GPU, with settings."""
    job: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy/k8s/qualify.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container |= {
        "image": "podrace-test/agentpod:local",
        "imagePullPolicy": "Never",
        "args": ["qualify", *(part for setting in settings for part in ("--set", setting))],
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
    }
    return job
