"""The Kubernetes pod that restores the database of a service is valid, hardened, and its command restores."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from small_databases import insert, make_databases, numbers

from podrace.mesh.home import Folders

KUBERNETES = Path(__file__).parents[5] / "deploy/k8s"
SERVICES = ("orchestrator", "leaderboard")


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KUBERNETES / "restore.yaml").read_text())
    return found


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / "base" / name).read_text()))


def stateful_set(service: str) -> Any:
    (found,) = [each for each in documents(f"{service}.yaml") if each["kind"] == "StatefulSet"]
    return found["spec"]


def test_the_pod_is_valid(pod: dict[str, Any]) -> None:
    kubernetes_validate.validate(pod, "1.37", strict=True)


def test_the_pod_has_the_rights_of_a_service_and_no_more(pod: dict[str, Any]) -> None:
    service = stateful_set("leaderboard")["template"]["spec"]
    assert pod["spec"]["securityContext"] == service["securityContext"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    (container,) = pod["spec"]["containers"]
    (own,) = service["containers"]
    assert container["securityContext"] == own["securityContext"]
    assert container["env"] == own["env"], "the keys of the store"


def test_no_call_to_a_service_reaches_the_pod_and_it_reaches_the_store(pod: dict[str, Any]) -> None:
    labels = pod["metadata"]["labels"].items()
    for service in (*SERVICES, "store"):
        assert not stateful_set(service)["selector"]["matchLabels"].items() <= labels
    policies = KUBERNETES / "components/network-policies/policies.yaml"
    (store,) = [
        each["spec"] for each in yaml.safe_load_all(policies.read_text()) if "store" in each["metadata"]["name"]
    ]
    assert store["ingress"][0]["from"][0]["podSelector"]["matchLabels"].items() <= labels


@pytest.mark.parametrize("service", SERVICES)
def test_the_pod_mounts_the_volume_of_the_service_where_the_database_is(pod: dict[str, Any], service: str) -> None:
    spec = yaml.safe_load(yaml.safe_dump(pod["spec"]).replace("orchestrator.sqlite", f"{service}.sqlite"))
    (template,) = stateful_set(service)["volumeClaimTemplates"]
    (claim,) = [each["persistentVolumeClaim"] for each in spec["volumes"] if "persistentVolumeClaim" in each]
    expected = f"{template['metadata']['name']}-podrace-{service}-0"
    assert claim["claimName"].replace("orchestrator", service) == expected
    (container,) = spec["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (own,) = [each for each in stateful_set(service)["template"]["spec"]["containers"] if each["name"] == service]
    assert {"name": "data", "mountPath": mounts["data"]} in own["volumeMounts"]
    assert f"--database={mounts['data']}/{service}.sqlite" in container["args"]
    dockerfile = (KUBERNETES.parent / "Dockerfile").read_text()
    assert f"PODRACE_{service.upper()}__DATABASE={mounts['data']}/{service}.sqlite" in dockerfile


@pytest.mark.parametrize("service", SERVICES)
def test_its_command_restores_the_database(pod: dict[str, Any], service: str, type_: Any, tmp_path: Path) -> None:
    home = make_databases(tmp_path / "home")
    made = {one["service"]: one["manifest_digest"] for one in type_("backup", "--home", str(home), "--json").json}
    insert(home / f"{service}.sqlite", 1)
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["dumb-init", "--", "podrace"]
    (uri,) = [each.partition("=")[2] for each in container["args"] if each.startswith("--store=")]
    settings = documents("kustomization.yaml")[0]["configMapGenerator"]
    assert all(any(each.endswith(f"STORE={uri}") for each in one["literals"]) for one in settings)
    values = {
        "/var/lib/podrace/orchestrator": str(home / service),
        uri: f"folder://{Folders.of(home).store}",
        "BACKUP": made[service],
    }
    arguments = list(container["args"])
    for old, new in values.items():
        arguments = [each.replace(old, new) for each in arguments]
    assert type_(*arguments).code == 0
    assert numbers(home / f"{service}.sqlite") == []
