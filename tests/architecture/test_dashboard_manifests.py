"""The component `dashboard` renders to a hardened gateway with TLS, where each person signs in."""

from pathlib import Path
from typing import Any

import pytest
from dashboard_arguments import Arguments, read_arguments
from test_manifests import DASHBOARD_SECRET, combined, named, pod_specs, scratch, validate

from podrace.certificates.folder import STANDARD
from podrace.dashboard.access import names_of
from podrace.dashboard.live import LIVE_PATH

__all__ = ["scratch"]
NAME = "podrace-dashboard"


@pytest.fixture(scope="module")
def objects(scratch: Path) -> list[dict[str, Any]]:
    """The mesh with a dashboard."""
    return combined(scratch, ("cert-manager", "dashboard", "network-policies", "tls"))


@pytest.fixture(scope="module")
def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The pods of the Deployment."""
    (spec,) = [spec for name, spec in pod_specs(objects) if name == NAME]
    return spec


@pytest.fixture(scope="module")
def arguments(objects: list[dict[str, Any]]) -> Arguments:
    """The arguments of the gateway."""
    return dashboard_arguments(objects)


def dashboard_arguments(objects: list[dict[str, Any]]) -> Arguments:
    """Reads the arguments, with the variables that Kubernetes fills in."""
    (container,) = [spec["containers"][0] for name, spec in pod_specs(objects) if name == NAME]
    values: dict[str, str] = {}
    for entry in container["env"]:
        if "valueFrom" in entry:
            source = entry["valueFrom"]["configMapKeyRef"]
            values[entry["name"]] = named(objects, "ConfigMap", source["name"])["data"][source["key"]]
    texts = container["args"]
    for name, value in values.items():
        texts = [text.replace(f"$({name})", value) for text in texts]
    assert container["command"][-2:] == ["podrace", "dashboard"]
    return read_arguments(texts)


def test_the_mesh_with_a_dashboard_is_what_kubernetes_takes(objects: list[dict[str, Any]]) -> None:
    validate(objects)


def test_the_gateway_accepts_its_arguments_and_lets_persons_sign_in(arguments: Arguments) -> None:
    arguments.settings.check()
    assert arguments.orchestrator == "podrace-orchestrator:50051"
    assert arguments.settings.sign_in
    assert not arguments.settings.insecure
    assert NAME in names_of(arguments.settings.host, arguments.settings.names)


def test_containers_may_do_nothing_but_their_work(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} <= container["resources"].keys()


def test_every_file_that_an_argument_names_is_mounted_from_a_secret(pod: dict[str, Any], arguments: Arguments) -> None:
    (container,) = pod["containers"]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    found = {path: secrets[mounts[str(path.parent)]] for path in files_of(arguments)}
    assert found == {
        Path("/etc/podrace/tls/tls.crt"): DASHBOARD_SECRET[0],
        Path("/etc/podrace/tls/tls.key"): DASHBOARD_SECRET[0],
    }
    assert set(secrets.values()) == set(found.values()), "no key of the store or of the mesh"


def files_of(arguments: Arguments) -> list[Path]:
    settings = arguments.settings
    return [path for path in (settings.certificate, settings.key) if path]


def test_ports_probes_and_policies_are_those_of_the_gateway(
    objects: list[dict[str, Any]], pod: dict[str, Any], arguments: Arguments
) -> None:
    (container,) = pod["containers"]
    assert container["ports"] == [{"name": "https", "containerPort": arguments.settings.port}]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": LIVE_PATH, "port": "https", "scheme": "HTTPS"}
    (port,) = named(objects, "Service", NAME)["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (arguments.settings.port, "https")
    policy = named(objects, "NetworkPolicy", NAME)["spec"]
    assert policy["podSelector"] == named(objects, "Deployment", NAME)["spec"]["selector"]
    (allowed,) = policy["ingress"]
    assert allowed["ports"] == [{"port": arguments.settings.port}]


def test_its_certificate_has_no_rights_of_its_own_and_the_name_of_the_service() -> None:
    assert DASHBOARD_SECRET[1].role == "viewer"
    assert DASHBOARD_SECRET[1].namespace == "", "a viewer without a namespace reads nothing of others"
    assert NAME in STANDARD[DASHBOARD_SECRET[1]]
