"""With the Prometheus operator, samples have the labels that alerts and dashboards use, with the same values."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.jobs import job_of, listed_of, owner_of
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.pool.prometheus_targets import page
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_SEPARATE, PodSpec

KUBERNETES = Path(__file__).parents[3] / "deploy/k8s"
MONITORS: dict[str, dict[str, Any]] = {
    found["metadata"]["name"]: found["spec"]
    for found in yaml.safe_load_all((KUBERNETES / "components/metrics/monitors.yaml").read_text())
}
SERVICES = {
    "orchestrator": "base/orchestrator.yaml",
    "leaderboard": "base/leaderboard.yaml",
    "serving": "components/serving/serving.yaml",
}


def given(monitor: Mapping[str, Any], template: Mapping[str, Any], container: str) -> dict[str, str]:
    """Returns the labels that a monitor gives to samples of a container."""
    # As Prometheus names the labels of a pod that it has found.
    meta = {"__meta_kubernetes_pod_container_name": container} | {
        "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name): value
        for name, value in template["metadata"]["labels"].items()
    }
    assert not monitor.get("podTargetLabels"), "they keep the names that the labels have in Kubernetes"
    (endpoint,) = monitor["podMetricsEndpoints"]
    return {one["targetLabel"]: meta[one["sourceLabels"][0]] for one in endpoint["relabelings"]}


def selected(monitor: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = monitor["selector"]
    wanted = [labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", [])]
    return all(wanted) and selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("tournament_id", ["race-2xxpit", "Race_2-2xxpit"])
def test_roles_of_pods_have_the_labels_that_the_list_of_the_orchestrator_gives_them(tournament_id: str) -> None:
    spec = PodSpec(layout=LAYOUT_SEPARATE, workers=2, learners=1, cores=4.0, memory_bytes=1 << 30)
    pod = NewPod(f"{tournament_id}-p0", tournament_id, spec)
    pod_environment = PodEnvironment("o:1", "l:2", "s3://b", Path(), Path(), "", 60.0, TelemetryConfig())
    owner = owner_of("podrace", tournament_id)
    owner["metadata"]["uid"] = "0"
    template = {"metadata": {}, "template": {"spec": {"containers": [{"name": "agentpod", "image": "i"}]}}}
    job = job_of(pod, pod_environment, KubernetesOptions(), template, owner)
    made = job["spec"]["template"]
    monitor = MONITORS["podrace-agentpods"]
    assert selected(monitor, made["metadata"]["labels"])
    job["metadata"]["creationTimestamp"] = "2026-11-27T00:00:00Z"
    expected = [group["labels"] for group in json.loads(page([listed_of(job, "10.0.0.1")]))]
    assert len(expected) == 4
    assert [given(monitor, made, one["name"]) for one in made["spec"]["containers"]] == expected


def pod_templates(path: str) -> Iterator[dict[str, Any]]:
    for found in yaml.safe_load_all((KUBERNETES / path).read_text()):
        if found["kind"] in ("StatefulSet", "Deployment"):
            yield found["spec"]["template"]


@pytest.mark.parametrize(("component", "path"), SERVICES.items())
def test_services_have_the_name_of_their_component(component: str, path: str) -> None:
    (template,) = pod_templates(path)
    template["metadata"]["labels"]["app.kubernetes.io/part-of"] = "podrace"  # the base adds it to all objects
    monitor = MONITORS["podrace-services"]
    assert selected(monitor, template["metadata"]["labels"])
    assert given(monitor, template, component) == {"component": component}
