"""Overlays for clusters that several meshes share: own registry, own names, and what pods may reach."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_manifests import KUBERNETES, OVERLAYS, REPOSITORY, combined, named, pod_specs, rendered, scratch, validate

from leaderboard.checkpoints.archiving import LARGEST_RECORDS_BYTES
from leaderboard.checkpoints.reader import LARGEST_POLICY_BYTES
from orchestrator.config import Config

__all__ = ["scratch"]
DGX = KUBERNETES / "overlays" / "dgx-superpod"
NODE_LOCAL_DNS = {"169.254.20.10/32", "169.254.25.10/32"}
"""Addresses on which NodeLocal DNSCache listens by default, and as kubespray installs it."""
Objects = list[dict[str, Any]]


def bindings(objects: Objects) -> dict[str, set[str]]:
    """Returns the namespaces to which each ClusterRoleBinding gives its rights."""
    return {
        each["metadata"]["name"]: {subject["namespace"] for subject in each["subjects"]}
        for each in objects
        if each["kind"] == "ClusterRoleBinding"
    }


def roles(objects: Objects) -> set[str]:
    return {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}


def images(objects: Objects) -> set[str]:
    return {
        one["image"]
        for _, spec in pod_specs(objects)
        for one in [*spec["containers"], *spec.get("initContainers", [])]
        if re.search(r"(^|/)podrace/", one["image"])
    }


def block_of(page: str, words: str) -> str:
    """Returns the YAML block of a document that has these words."""
    text = (REPOSITORY / "docs" / page).read_text()
    (found,) = [block for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if words in block]
    return str(found)


def written(scratch: Path, name: str, text: str) -> Objects:
    """Renders a kustomization that is written to a new overlay."""
    folder = scratch / "overlays" / name
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(text)
    return rendered(folder)


# --- several meshes in one cluster --------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_name_of_every_object_of_the_cluster_that_names_a_namespace_ends_in_it(overlay: str) -> None:
    objects = rendered(KUBERNETES / "overlays" / overlay)
    assert bindings(objects) == {"podrace-capacity-podrace": {"podrace"}}
    assert roles(objects) == {"podrace-capacity-podrace"}


OF_THE_CLUSTER = {"Namespace", "ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_deleting_a_mesh_deletes_nothing_that_another_mesh_has(overlay: str, scratch: Path) -> None:
    folder = scratch / "overlays" / overlay
    text = (folder / "kustomization.yaml").read_text()
    assert text.count("\nnamespace: podrace\n") == 1
    other = scratch / "overlays" / f"{overlay}-of-another-team"
    shutil.copytree(folder, other)
    (other / "kustomization.yaml").write_text(text.replace("\nnamespace: podrace\n", "\nnamespace: team-two\n"))
    found = [each for each in rendered(folder) if "namespace" not in each["metadata"]]
    assert {each["kind"] for each in found} == OF_THE_CLUSTER
    keys = [{(each["kind"], each["metadata"]["name"]) for each in one} for one in (found, rendered(other))]
    assert not keys[0] & keys[1]


def test_two_meshes_in_different_namespaces_have_roles_and_bindings_of_different_names(scratch: Path) -> None:
    text = (KUBERNETES / "overlays/single-gpu/kustomization.yaml").read_text().replace(", namespace.yaml", "")
    text = text.replace("../../components/tls", "../../components/tls, ../../components/token-review")
    objects = written(scratch, "second-mesh", text.replace("namespace: podrace", "namespace: team-two"))
    validate(objects)
    assert bindings(objects) == {name: {"team-two"} for name in (
        "podrace-capacity-team-two", "podrace-token-review-team-two",
    )}  # fmt: skip
    assert roles(objects) == bindings(objects).keys()
    assert all(
        each["roleRef"]["name"] == each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRoleBinding"
    )


def test_callers_of_other_namespaces_get_names_that_resolve_there_and_that_the_certificates_have(scratch: Path) -> None:
    text = (DGX / "kustomization.yaml").read_text().replace("namespace: podrace\n", "namespace: team-two\n")
    text = text.replace("components:\n", "components:\n  - ../../components/token-review\n")
    folder = scratch / "overlays" / "callers"
    shutil.copytree(DGX, folder)
    (folder / "kustomization.yaml").write_text(text)
    objects = rendered(folder)
    names = {
        each["metadata"]["name"]: each["spec"]["dnsNames"] for each in objects
        if each["kind"] == "Certificate" and "dnsNames" in each["spec"]
    }  # fmt: skip
    (container,) = named(objects, "StatefulSet", "podrace-orchestrator")["spec"]["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    (namespace,) = [each for each in container["env"] if each["name"] == "OWN_NAMESPACE"]
    assert namespace["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    # Kubernetes replaces variables that are defined before.
    variables = list(values)
    assert variables.index("OWN_NAMESPACE") < variables.index("PODRACE_ORCHESTRATOR__TOKEN_LEADERBOARD")
    address = str(values["PODRACE_ORCHESTRATOR__TOKEN_LEADERBOARD"]).replace("$(OWN_NAMESPACE)", "team-two")
    assert address == "podrace-leaderboard.team-two.svc:50062"
    assert address.partition(":")[0] in names["podrace-leaderboard"]
    assert "podrace-orchestrator.team-two.svc" in names["podrace-orchestrator"]
    for service in ("orchestrator", "leaderboard"):
        # Callers of the namespace, and callers that name a host that both certificates have.
        assert {f"podrace-{service}", "localhost"} <= {*names[f"podrace-{service}"]}


# --- images of a registry -----------------------------------------------------------------------------------------


def test_the_overlay_of_the_documentation_takes_all_images_from_its_registry_and_names_its_own_binding(
    scratch: Path,
) -> None:
    objects = written(scratch, "documented", block_of("cluster.md", "accelerator: h100"))
    validate(objects)
    assert images(objects) == {
        f"registry.example/podrace/{name}:1.0" for name in ("orchestrator", "leaderboard", "agentpod-cuda")
    }
    assert bindings(objects) == {"podrace-capacity-training": {"training"}}


def test_the_overlay_for_a_superpod_takes_no_image_from_the_default_registry() -> None:
    found = images(rendered(DGX))
    assert found
    assert all(image.startswith("registry.example/podrace/") for image in found)


# --- what kustomize and operators take ----------------------------------------------------------------------------


def test_policies_are_applied_alone_and_have_no_namespace() -> None:
    policies = rendered(KUBERNETES / "components" / "admission")
    validate(policies)
    assert len(policies) == 6
    assert all(each["apiVersion"].startswith("admissionregistration.k8s.io/") for each in policies)
    assert not any("namespace" in each["metadata"] for each in policies)


def test_the_queue_has_a_version_that_kueue_serves(scratch: Path) -> None:
    objects = combined(scratch, ("kueue",))
    assert named(objects, "LocalQueue", "podrace")["apiVersion"] == "kueue.x-k8s.io/v1beta2"


def test_the_documented_patch_gives_monitors_and_rules_the_label_by_which_prometheus_selects_them(
    scratch: Path,
) -> None:
    block = yaml.safe_load(block_of("monitoring.md", "kube-prometheus-stack"))
    wanted = {"components": ["../../components/metrics"], "resources": ["../../base"], **block}
    objects = written(scratch, "labeled", yaml.safe_dump(wanted))
    found = [each for each in objects if each["apiVersion"].startswith("monitoring.coreos.com/")]
    assert {each["kind"] for each in found} == {"PodMonitor", "PrometheusRule"}
    assert all(each["metadata"]["labels"] == {"release": "kube-prometheus-stack"} for each in found)
    (patch,) = block["patches"]
    assert patch["patch"] in (DGX / "kustomization.yaml").read_text(), "the overlay has the same one as a comment"


# --- what pods may reach ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("components", [("network-policies",), ("serving", "tls"), ("dashboard", "tls")], ids="-".join)
def test_names_can_be_resolved_by_a_dns_server_with_the_network_of_the_host(
    components: tuple[str, ...], scratch: Path
) -> None:
    policies = [each["spec"] for each in combined(scratch, components) if each["kind"] == "NetworkPolicy"]
    rules = [rule for policy in policies for rule in policy.get("egress", ())]
    to_dns = [rule for rule in rules if 53 in [port["port"] for port in rule.get("ports", ())]]
    assert to_dns
    for rule in to_dns:
        assert {each["ipBlock"]["cidr"] for each in rule["to"] if "ipBlock" in each} == NODE_LOCAL_DNS
        assert {port["port"] for port in rule["ports"]} == {53}


def test_agent_pods_reach_no_address_outside_the_cluster_but_those_of_the_store() -> None:
    egress = named(rendered(DGX), "NetworkPolicy", "podrace-agentpod")["spec"]["egress"]
    blocks = {each["ipBlock"]["cidr"] for rule in egress for each in rule["to"] if "ipBlock" in each}
    assert blocks == {"192.0.2.0/24", *NODE_LOCAL_DNS}, "a placeholder that no machine has"
    assert all(rule["to"] for rule in egress)


# --- a large cluster ----------------------------------------------------------------------------------------------


def test_the_leaderboard_of_a_large_cluster_has_a_processor_and_more_memory() -> None:
    (container,) = named(rendered(DGX), "StatefulSet", "podrace-leaderboard")["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}


def test_the_leaderboard_has_memory_for_the_policies_that_it_reads_at_the_same_time_and_for_records() -> None:
    base = rendered(KUBERNETES / "base")
    (container,) = named(base, "StatefulSet", "podrace-leaderboard")["spec"]["template"]["spec"]["containers"]
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
    assert limit >= LARGEST_POLICY_BYTES + 2 * LARGEST_RECORDS_BYTES + 512 * 2**20


def test_a_large_cluster_is_read_less_often_by_an_orchestrator_with_more_memory() -> None:
    objects = rendered(DGX)
    (settings,) = [
        each["data"] for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith("podrace-orchestrator")
    ]  # fmt: skip
    sensed = float(settings["PODRACE_ORCHESTRATOR__LAUNCHERS__KUBERNETES__SENSE_SECONDS"])
    assert sensed > Config().launchers.kubernetes.sense_seconds
    (container,) = named(objects, "StatefulSet", "podrace-orchestrator")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"] == "4Gi"
