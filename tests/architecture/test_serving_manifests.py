"""The component `serving` renders to a hardened policy server that Kubernetes scales, probes and drains, with TLS."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_manifests import (
    KUBERNETES,
    SERVING_SECRET,
    combined,
    container_environment,
    named,
    pod_specs,
    rendered,
    scratch,
    validate,
)

from podrace.certificates.folder import STANDARD
from podrace.config import config_from_arguments
from podrace.serving.config import ServingConfig

__all__ = ["scratch"]
NAME = "podrace-serving"
DOCKERFILE = (KUBERNETES.parent / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def objects(scratch: Path) -> list[dict[str, Any]]:
    """The mesh with a policy server."""
    return combined(scratch, ("cert-manager", "metrics", "network-policies", "serving", "tls"))


@pytest.fixture(scope="module")
def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The pods of the Deployment."""
    (spec,) = [spec for name, spec in pod_specs(objects) if name == NAME]
    return spec


@pytest.fixture(scope="module")
def config(objects: list[dict[str, Any]]) -> ServingConfig:
    """The configuration of the policy server."""
    return serving_configuration(objects)


def serving_configuration(objects: list[dict[str, Any]]) -> ServingConfig:
    """Reads the configuration as the container does, with the settings of its image."""
    (spec,) = [spec for name, spec in pod_specs(objects) if name == NAME]
    image = dict(re.findall(r"(PODRACE_SERVING__\w+)=(\S+)", DOCKERFILE))
    environ = image | container_environment(objects, spec["containers"][0])
    return config_from_arguments(ServingConfig, [], program="podrace.serving", environ=environ)


def test_the_mesh_with_a_policy_server_is_what_kubernetes_takes(objects: list[dict[str, Any]]) -> None:
    validate(objects)


def test_an_overlay_names_the_tournament_as_the_component_says(scratch: Path) -> None:
    text = (KUBERNETES / "components/serving/kustomization.yaml").read_text()
    example = "".join(line.removeprefix("#   ") for line in text.splitlines(True) if line.startswith("#   "))
    folder = scratch / "overlays" / "served"
    folder.mkdir()
    components = [f"../../components/{name}" for name in ("tls", "serving")]
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["../../base"], "components": components, **yaml.safe_load(example)})
    )
    objects = rendered(folder)
    (spec,) = [spec for name, spec in pod_specs(objects) if name == NAME]
    environ = container_environment(objects, spec["containers"][0])
    assert environ["PODRACE_SERVING__TOURNAMENT"] == "cartpole-2xxpit"
    assert environ["PODRACE_SERVING__ORCHESTRATOR"] == "podrace-orchestrator:50051"


def test_the_server_follows_a_tournament_of_the_mesh_and_needs_no_keys_of_the_store(
    config: ServingConfig, pod: dict[str, Any]
) -> None:
    assert (config.orchestrator, config.folder) == ("podrace-orchestrator:50051", "")
    assert not config.server.insecure
    assert not config.anonymous
    assert "podrace-store" not in str(pod)


def test_containers_may_do_nothing_but_their_work(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= container["resources"].keys()


def test_every_port_that_is_named_is_one_on_which_the_server_listens(
    objects: list[dict[str, Any]], pod: dict[str, Any], config: ServingConfig
) -> None:
    listens = {
        "grpc": config.server.listen,
        "tokens": config.server.token_listen,
        "http": config.rest_listen,
        "metrics": config.telemetry.metrics_listen,
    }
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert {name: f"0.0.0.0:{port}" for name, port in ports.items()} == listens
    for port in named(objects, "Service", NAME)["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    (allowed,) = [rule for rule in named(objects, "NetworkPolicy", NAME)["spec"]["ingress"] if len(rule["ports"]) > 1]
    assert {each["port"] for each in allowed["ports"]} == {ports[name] for name in ("grpc", "tokens", "http")}


def test_a_replica_without_a_policy_is_alive_and_not_ready(pod: dict[str, Any], config: ServingConfig) -> None:
    (container,) = pod["containers"]
    assert container["readinessProbe"]["grpc"]["port"] == int(config.server.health_listen.rpartition(":")[2])
    # gRPC health reports NOT_SERVING before the first policy, and a restart would not bring one.
    live = {"path": "/v2/health/live", "port": "http", "scheme": "HTTPS"}
    assert container["livenessProbe"]["httpGet"] == container["startupProbe"]["httpGet"] == live


def test_a_replica_that_stops_answers_what_it_has_before_it_is_killed(
    pod: dict[str, Any], config: ServingConfig
) -> None:
    assert config.server.drain_seconds > 2 * pod["containers"][0]["readinessProbe"]["periodSeconds"]
    assert pod["terminationGracePeriodSeconds"] > config.server.drain_seconds + config.server.grace_seconds


def test_the_autoscaler_and_the_disruption_budget_are_of_the_deployment(objects: list[dict[str, Any]]) -> None:
    deployment = named(objects, "Deployment", NAME)
    assert "replicas" not in deployment["spec"], "the autoscaler sets it"
    scaler = named(objects, "HorizontalPodAutoscaler", NAME)["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    budget = named(objects, "PodDisruptionBudget", NAME)["spec"]
    assert budget["selector"] == deployment["spec"]["selector"]
    assert budget["maxUnavailable"] < scaler["minReplicas"]
    for kind in ("Service", "NetworkPolicy"):
        spec = named(objects, kind, NAME)["spec"]
        assert (spec.get("podSelector") or {"matchLabels": spec["selector"]}) == deployment["spec"]["selector"]


def test_the_server_has_the_certificate_of_its_role_and_only_the_public_key_of_the_mesh(
    pod: dict[str, Any], config: ServingConfig
) -> None:
    secret, spiffe = SERVING_SECRET
    secrets = {each["secret"]["secretName"]: each["secret"].get("items") for each in pod["volumes"] if "secret" in each}
    assert secrets == {secret: None, "podrace-mesh-key": [{"key": "tls.crt", "path": "tls.crt"}]}
    assert config.access.public_keys == ("/etc/podrace/mesh/tls.crt",)
    assert NAME in STANDARD[spiffe]
    environ = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    for variable, file in (("CERTIFICATE", "tls.crt"), ("KEY", "tls.key"), ("AUTHORITY", "ca.crt")):
        assert environ[f"PODRACE_TLS_{variable}_FILE"] == f"/etc/podrace/tls/{file}"


def test_its_metrics_are_scraped(objects: list[dict[str, Any]]) -> None:
    (expression,) = named(objects, "PodMonitor", "podrace-services")["spec"]["selector"]["matchExpressions"]
    assert "serving" in expression["values"]


def test_the_image_has_onnx_runtime_and_no_pytorch() -> None:
    lock = (KUBERNETES.parent / "locks/serving.txt").read_text()
    packages = set(re.findall(r"^([\w-]+)==", lock, re.MULTILINE))
    assert {"onnxruntime", "numpy", "grpcio", "aiohttp"} <= packages
    assert not packages & {"torch", "gymnasium", "minio", "docker"}
    (stage,) = re.findall(r"^FROM service AS serving\n(.*?)\n\n", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert "agentpod" not in stage
