"""Fakes a Kubernetes API server in memory, as far as the Kubernetes launcher uses it; responses are as recorded."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.api_client import ApiResponse
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_SEPARATE, PodSpec

NAMESPACE = "mesh"
GIB = 1 << 30
PATH = re.compile(
    r"/apis?/(?P<group>[a-z0-9]+/v1|v1)(/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)"
    r"(/(?P<name>[^/]+))?(?P<log>/log)?"
)

POD_ENVIRONMENT = PodEnvironment(
    orchestrator="podrace-orchestrator:50051",
    leaderboard="podrace-leaderboard:50052",
    store="minio+http://podrace-store:9000/podrace",
    runtime_folder=Path(),
    log_folder=Path(),
    lifeline="",
    orphan_seconds=60.0,
    telemetry=TelemetryConfig(),
)
TEMPLATE: dict[str, Any] = {
    "metadata": {
        "name": "podrace-agentpod",
        "labels": {"kueue.x-k8s.io/queue-name": "team"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "kept"},
    },
    "template": {
        "metadata": {"labels": {"team": "races"}},
        "spec": {
            "terminationGracePeriodSeconds": 60,
            "subdomain": "podrace-agentpod",
            "containers": [
                {
                    "name": "agentpod",
                    "image": "podrace/agentpod:1",
                    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
                    "resources": {"limits": {"rdma/shared": "1"}},
                    "volumeMounts": [{"name": "cache", "mountPath": "/var/cache/podrace"}],
                }
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        },
    },
}


class ManualMonotonic:
    """A monotonic clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def new_pod(pod_id: str = "race-p0", **changes: Any) -> NewPod:
    spec = PodSpec(layout=LAYOUT_SEPARATE, workers=1, learners=1, cores=2.0, memory_bytes=3 * GIB, plane="auto")
    for key, value in changes.items():
        setattr(spec, key, value)
    return NewPod(pod_id, "race", spec)


def node(name: str = "n1", cores: str = "8", memory: str = "16Gi", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": cores, "memory": memory, "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def failure(status: int, message: str, reason: str = "", **headers: str) -> ApiResponse:
    status_object = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status}
    return ApiResponse(status, json.dumps(status_object).encode(), headers)


@dataclass
class FakeCluster:
    """Objects by kind and name, the requests that were received, and the requests that must fail."""

    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    requests: list[tuple[str, str, Mapping[str, str], Any]] = field(default_factory=list)
    failures: dict[tuple[str, str], ApiResponse | OSError] = field(default_factory=dict)
    """Failures by method and kind."""
    logs: dict[str, str] = field(default_factory=dict)
    page: int = 500
    expired_once: bool = False
    created: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many objects of a kind have had a name."""

    def __post_init__(self) -> None:
        self.put("podtemplates", json.loads(json.dumps(TEMPLATE)))
        self.put("nodes", node())

    def put(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        name = item["metadata"]["name"]
        self.created[kind, name] += 1
        earlier = self.created[kind, name] - 1
        item["metadata"].setdefault("uid", f"uid-of-{name}" + (f"-{earlier}" if earlier else ""))
        self.objects.setdefault(kind, {})[name] = item
        return item

    def jobs(self) -> dict[str, dict[str, Any]]:
        return self.objects.get("jobs", {})

    def give_pod(
        self, job: str, phase: str = "Running", *, at: str = "n1", index: int | None = None, **status: Any
    ) -> dict[str, Any]:
        """Creates a pod like the Job controller, the scheduler and a kubelet would."""
        template, uid = self.jobs()[job]["spec"]["template"], self.jobs()[job]["metadata"]["uid"]
        number = len(self.objects.get("pods", {}))
        return self.put(
            "pods",
            {
                "metadata": {
                    "name": f"{job}-{number:05}",
                    "namespace": NAMESPACE,
                    "labels": template["metadata"]["labels"],
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid}],
                    "annotations": {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)},
                    "creationTimestamp": f"2026-11-21T10:00:{number:02}Z",
                },
                "spec": template["spec"] | ({"nodeName": at} if at else {}),
                "status": {"phase": phase, **status},
            },
        )

    def end(self, job: str, condition: str) -> None:
        self.jobs()[job]["status"] = {"conditions": [{"type": condition, "status": "True"}]}

    def __call__(self, method: str, path: str, query: Mapping[str, str], body: Any) -> ApiResponse:
        self.requests.append((method, path, query, body))
        match = PATH.fullmatch(path)
        assert match, path
        kind, name = match["kind"], match["name"]
        trouble = self.failures.get((method, kind))
        if isinstance(trouble, OSError):
            raise trouble
        if trouble:
            return trouble
        held = self.objects.setdefault(kind, {})
        if match["log"]:
            return ApiResponse(200, self.logs.get(name, "").encode())
        if method == "GET" and not name:
            return self._list(held, query)
        if method == "POST":
            return self._create(kind, held, body)
        if name not in held:
            return failure(404, f'{kind} "{name}" not found', "NotFound")
        if method == "DELETE":
            uid, wanted = held[name]["metadata"]["uid"], body.get("preconditions", {}).get("uid", "")
            if wanted not in ("", uid):
                message = f"the UID in the precondition ({wanted}) does not match the UID in record ({uid})"
                return failure(409, f'Operation cannot be fulfilled on {kind} "{name}": {message}', "Conflict")
            self._delete(kind, held, name, body)
            return ApiResponse(200, b"{}")
        return ApiResponse(200, json.dumps(held[name]).encode())

    def _list(self, held: dict[str, dict[str, Any]], query: Mapping[str, str]) -> ApiResponse:
        wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
        found = [item for item in held.values() if wanted.items() <= (item["metadata"].get("labels") or {}).items()]
        begin = int(query.get("continue", "0"))
        if begin and self.expired_once:
            self.expired_once = False
            return failure(410, "The provided continue parameter is too old", "Expired")
        more = {"continue": str(begin + self.page)} if len(found) > begin + self.page else {}
        return ApiResponse(200, json.dumps({"items": found[begin : begin + self.page], "metadata": more}).encode())

    def _create(self, kind: str, held: dict[str, dict[str, Any]], body: dict[str, Any]) -> ApiResponse:
        body = json.loads(json.dumps(body))
        name = body["metadata"].setdefault("name", f"{body['metadata'].get('generateName', '')}{len(held)}")
        if name in held:
            return failure(409, f'{kind} "{name}" already exists', "AlreadyExists")
        body["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
        return ApiResponse(201, json.dumps(self.put(kind, body)).encode())

    def _delete(self, kind: str, held: dict[str, dict[str, Any]], name: str, options: Mapping[str, Any]) -> None:
        if options.get("propagationPolicy") == "Foreground" or (kind == "pods" and "gracePeriodSeconds" not in options):
            held[name]["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
            return
        uid = held.pop(name)["metadata"]["uid"]
        for dependents in ("jobs", "pods"):
            for item in list(self.objects.get(dependents, {}).values()):
                owners = item["metadata"].get("ownerReferences") or []
                if not any(owner["uid"] == uid for owner in owners):
                    continue
                if options.get("propagationPolicy") == "Orphan":
                    item["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
                elif dependents == "pods":
                    # The garbage collector deletes the pods, with their own grace period.
                    item["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
                else:
                    self._delete("jobs", self.objects["jobs"], item["metadata"]["name"], {})
