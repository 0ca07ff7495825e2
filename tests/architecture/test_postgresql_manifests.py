"""With the component `postgresql`, both services have two replicas, and callers reach the one that leads."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_compose_files import COMPOSE, defaults_filled_in, image_environment
from test_manifests import (
    CHECKS,
    COMPONENTS,
    REPOSITORY,
    SERVICES,
    WAYS_TO_A_GPU,
    combined,
    named,
    scratch,
    service_configuration,
    validate,
)

from podrace.config import config_from_arguments
from podrace.database import DatabaseLocation
from podrace.rpc import LIVENESS

__all__ = ["scratch"]
URL = "postgresql://podrace@postgresql.example.org:5432/podrace?sslmode=verify-full"
SECRETS = {("podrace-postgresql", "url"): URL}
OTHERS = tuple(sorted({*COMPONENTS} - WAYS_TO_A_GPU - {"postgresql"}))


@pytest.fixture(params=[(), ("tls",), ("network-policies", "tls", "token-review"), OTHERS], ids="-".join)
def objects(request: pytest.FixtureRequest, scratch: Path) -> list[dict[str, Any]]:
    return combined(scratch, ("postgresql", *request.param))


def pod_spec(objects: list[dict[str, Any]], service: str) -> Any:
    return named(objects, "StatefulSet", f"podrace-{service}")["spec"]["template"]["spec"]


def test_the_component_is_what_kubernetes_takes_with_all_others(objects: list[dict[str, Any]]) -> None:
    validate(objects)


@pytest.mark.parametrize("service", SERVICES)
def test_the_address_and_the_password_of_the_database_come_from_a_secret(
    objects: list[dict[str, Any]], service: str
) -> None:
    config = service_configuration(objects, service, SECRETS)
    assert config.database == URL
    spec = pod_spec(objects, service)
    (container,) = [each for each in spec["containers"] if each["name"] == service]
    folder, _, file = config.database_password_file.rpartition("/")
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == folder]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "podrace-postgresql"
    assert volume["secret"]["items"] == [{"key": "password", "path": file}]


@pytest.mark.parametrize("service", SERVICES)
def test_there_are_two_replicas_without_a_volume_that_only_one_node_can_mount(
    objects: list[dict[str, Any]], service: str
) -> None:
    spec = named(objects, "StatefulSet", f"podrace-{service}")["spec"]
    assert spec["replicas"] == 2
    assert spec["podManagementPolicy"] == "Parallel"
    assert "volumeClaimTemplates" not in spec
    (data,) = [each for each in pod_spec(objects, service)["volumes"] if each["name"] == "data"]
    assert "emptyDir" in data
    (spread,) = pod_spec(objects, service)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= spec["selector"]["matchLabels"].items()


@pytest.mark.parametrize("service", SERVICES)
def test_a_replica_that_waits_passes_its_probes_because_they_ask_the_port_of_health(
    objects: list[dict[str, Any]], service: str
) -> None:
    (container,) = [each for each in pod_spec(objects, service)["containers"] if each["name"] == service]
    port = int(service_configuration(objects, service, SECRETS).server.health_listen.rpartition(":")[2])
    assert container["readinessProbe"]["grpc"] == {"port": port}
    assert (
        container["livenessProbe"]["grpc"] == container["startupProbe"]["grpc"] == {"port": port, "service": LIVENESS}
    )


@pytest.mark.parametrize("service", SERVICES)
def test_the_name_of_a_service_stands_for_both_replicas(objects: list[dict[str, Any]], service: str) -> None:
    found = named(objects, "Service", f"podrace-{service}")["spec"]
    assert found["clusterIP"] == "None"
    pods = named(objects, "StatefulSet", f"podrace-{service}")["spec"]["template"]["metadata"]["labels"]
    assert found["selector"].items() <= pods.items()
    orchestrator = service_configuration(objects, "orchestrator", SECRETS)
    address = {"orchestrator": orchestrator.advertised, "leaderboard": orchestrator.leaderboard}[service]
    assert address.partition(":")[0] == f"podrace-{service}"


@pytest.mark.parametrize("service", SERVICES)
def test_an_eviction_leaves_one_replica(objects: list[dict[str, Any]], service: str) -> None:
    budget = named(objects, "PodDisruptionBudget", f"podrace-{service}")["spec"]
    spec = named(objects, "StatefulSet", f"podrace-{service}")["spec"]
    assert budget["minAvailable"] == spec["replicas"] - 1
    assert budget["selector"] == spec["selector"]


IMMUTABLE = {"StatefulSet": ("podManagementPolicy", "serviceName", "volumeClaimTemplates"), "Service": ("clusterIP",)}
"""Fields that the component changes and that the API server does not let anyone change."""


def test_the_documented_move_deletes_every_object_that_cannot_be_changed(scratch: Path) -> None:
    before, after = combined(scratch, ()), combined(scratch, ("postgresql",))
    changed = {
        (kind, each["metadata"]["name"])
        for kind, fields in IMMUTABLE.items()
        for each in before
        if each["kind"] == kind
        for field in fields
        if each["spec"].get(field) != named(after, kind, each["metadata"]["name"])["spec"].get(field)
    }
    page = (REPOSITORY / "docs/cluster.md").read_text()
    (kinds, names) = re.findall(r"^kubectl -n podrace delete (statefulset\S*) (podrace.*)$", page, re.MULTILINE)[0]
    deleted = {(kind, name) for kind in kinds.split(",") for name in names.split()}
    assert {(kind.lower(), name) for kind, name in changed} == deleted


@pytest.mark.parametrize("name", ["leaderboard", "orchestrator", "orchestrator-fixed"])
def test_compose_runs_two_replicas_that_accept_their_configuration(name: str) -> None:
    program = name.partition("-")[0]
    override = yaml.safe_load((COMPOSE / "compose.postgresql.yaml").read_text())
    base = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"][name]
    service = override["services"][name]
    assert service["deploy"]["replicas"] == 2
    assert "ports" not in base, "two containers cannot publish one port"
    assert base.get("container_name") is None
    environ = image_environment(program) | {
        key: defaults_filled_in(str(value)) for key, value in (base["environment"] | service["environment"]).items()
    }
    config = config_from_arguments(SERVICES[program], [], program=program, environ=environ)
    CHECKS[program](config)
    assert DatabaseLocation.of(config.database).file is None
    (secret,) = service["secrets"]
    assert config.database_password_file == f"/run/secrets/{secret}"
    assert secret in override["secrets"]
    assert config.server.health_listen, "a replica that waits answers health checks there"
