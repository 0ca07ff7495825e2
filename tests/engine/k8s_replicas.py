"""An overlay with the component `postgresql`: a database, and two replicas of each service that are found by name.

It is the overlay `local` with the volumes of other clusters, which the component replaces, and with cluster names in
place of addresses. What Kubernetes 1.20 does not have is left out: probes by gRPC, and this version of disruption
budgets.
"""

import json
import os
from pathlib import Path
from typing import Any

import yaml
from k8s_mesh import REPOSITORY, moved, pod_patch, renamed, tested_image

STORE_ADDRESS = "10.96.0.63"
REPLICATED = ("orchestrator", "leaderboard")
CLAIMS = [
    {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
]
DATABASE = """
apiVersion: v1
kind: Secret
metadata: {name: podrace-postgresql}
stringData: {password: test-database-password, url: 'postgresql://podrace@postgresql:5432/postgres'}
---
apiVersion: v1
kind: Service
metadata: {name: postgresql}
spec: {clusterIP: None, selector: {app: postgresql}, ports: [{port: 5432}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: postgresql}
spec:
  selector: {matchLabels: {app: postgresql}}
  template:
    metadata: {labels: {app: postgresql}}
    spec:
      automountServiceAccountToken: false
      containers:
        - name: postgresql
          image: podrace-test/postgresql:latest
          imagePullPolicy: Never
          readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 2}
"""


def suffix_of(name: str) -> str:
    """Returns what follows the name of a Service of a namespace."""
    return f"{name}.svc.cluster.local"


def write_replicas_overlay(folder: Path, name: str, data: Path, name_server: str) -> Path:
    """Writes the overlay.

    Args:
        folder: Empty folder.
        name: Name of the namespace.
        data: Folder of `make_data`.
        name_server: Address that answers for `suffix_of(name)`.

    Returns:
        Folder of the overlay.
    """
    volumes, top = folder / "volumes", folder / "replicas"
    for each in (volumes, top):
        each.mkdir()
    claims = json.dumps([{"op": "add", "path": "/spec/volumeClaimTemplates", "value": CLAIMS}])
    with_volumes = {
        "resources": [os.path.relpath(REPOSITORY / "deploy/k8s/overlays/local", volumes)],
        "patches": [
            *(pod_patch(service, {"volumes": [{"name": "data", "$patch": "delete"}]}) for service in REPLICATED),
            {"target": {"kind": "StatefulSet", "name": "podrace-(orchestrator|leaderboard)"}, "patch": claims},
        ],
    }
    (volumes / "kustomization.yaml").write_text(yaml.safe_dump(with_volumes))
    (top / "database.yaml").write_text(DATABASE)
    (top / "kustomization.yaml").write_text(yaml.safe_dump(_overlay(top, name, data, name_server)))
    return top


def _overlay(folder: Path, name: str, data: Path, name_server: str) -> dict[str, Any]:
    names = {"dnsPolicy": "None", "dnsConfig": {"nameservers": [name_server], "searches": [suffix_of(name)]}}
    # A replica that waits listens there only.
    probes = {"readinessProbe": {"tcpSocket": {"port": 50059}}}
    services = [pod_patch(service, {**names, "containers": [{"name": service, **probes}]}) for service in REPLICATED]
    store = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "podrace-store"},
        "spec": {"clusterIP": STORE_ADDRESS},
    }
    budgets = json.dumps([{"op": "replace", "path": "/apiVersion", "value": "policy/v1beta1"}])
    pods = json.dumps([{"op": "add", "path": f"/template/spec/{key}", "value": value} for key, value in names.items()])
    return {
        "namespace": name,
        "resources": ["../volumes", "database.yaml"],
        "components": [os.path.relpath(REPOSITORY / "deploy/k8s/components/postgresql", folder)],
        "configMapGenerator": [
            _settings(
                "orchestrator",
                ADVERTISED="podrace-orchestrator:50051",
                LEADERBOARD="podrace-leaderboard:50052",
                STORE="minio+http://podrace-store:9000/podrace",
            ),
            _settings("leaderboard", STORE="minio+http://podrace-store:9000/podrace"),
        ],
        "images": [tested_image(service) for service in (*REPLICATED, "store", "agentpod")],
        "patches": [
            renamed("ClusterRole", name),
            renamed("ClusterRoleBinding", name),
            moved("store", data),
            *services,
            {"patch": json.dumps(store)},
            {"target": {"kind": "PodDisruptionBudget"}, "patch": budgets},
            {"target": {"kind": "PodTemplate"}, "patch": pods},
        ],
    }


def _settings(service: str, **values: str) -> dict[str, Any]:
    literals = [f"PODRACE_{service.upper()}__{key}={value}" for key, value in values.items()]
    return {"name": f"podrace-{service}", "behavior": "merge", "literals": literals}
