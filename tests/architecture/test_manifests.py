"""Every overlay of deploy/k8s, and every component on the base, renders to objects that Kubernetes knows, hardened."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agentpod.config import PodConfig
from leaderboard.config import Config as LeaderboardConfig
from leaderboard.config import PluginConfig
from leaderboard.config import check as check_leaderboard
from leaderboard.plugins.host import HostConfig
from orchestrator.config import Config as OrchestratorConfig
from orchestrator.config import check as check_orchestrator
from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.event_recorder import event_of
from orchestrator.launchers.kubernetes.jobs import job_of, owner_of
from orchestrator.launchers.options import KubernetesOptions
from podrace.backup.config import BackupConfig
from podrace.certificates.names import SpiffeName
from podrace.checkpoint_store import check_uri
from podrace.cli.commands.certs import SECRETS as PRINTED_SECRETS
from podrace.config import config_from_arguments
from podrace.errors import InvalidArgument
from podrace.rpc import LIVENESS
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_FUSED, LAYOUT_SEPARATE, PodSpec

REPOSITORY = Path(__file__).parents[2]
KUBERNETES = REPOSITORY / "deploy" / "k8s"
VERSION = "1.37"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
WAYS_TO_A_GPU = {"gpu-dedicated", "gpu-fused", "gpu-node", "gpu-dra", "gpu-mps"}
"""One of them at a time."""
ADDITIONS = {"admission", "cert-manager", "dashboard", "metrics", "plugins", "serving"}
"""They add objects and change none, so they are rendered alone, with what they are made for, and in the overlays."""
ELSEWHERE = {"postgresql"}
"""Rendered with others in a separate file, because each component doubles the number of combinations."""
COMBINED = sorted(set(COMPONENTS) - WAYS_TO_A_GPU - ADDITIONS - ELSEWHERE)
COMBINATIONS = [
    tuple(sorted({*others, *gpu}))
    for gpu in [(), *((way,) for way in sorted(WAYS_TO_A_GPU))]
    for count in range(len(COMBINED) + 1)
    for others in itertools.combinations(COMBINED, count)
]
OPERATORS = ("cert-manager.io/", "monitoring.coreos.com/", "kueue.x-k8s.io/")
"""Whose kinds are not Kubernetes' own, so that there is no schema to hold them against."""
COMMAND = Path(sys.executable).parent / "kubectl"


@cache
def rendered(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([COMMAND, "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, f"kubectl kustomize {folder}: {done.stderr}"
    return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found]


def validate(objects: list[dict[str, Any]]) -> None:
    assert objects
    for found in objects:
        if found["apiVersion"].startswith(OPERATORS):
            continue
        validate_one(json.dumps(found, sort_keys=True))


@cache
def validate_one(text: str) -> None:
    found = json.loads(text)
    try:
        kubernetes_validate.validate(found, VERSION, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        pytest.fail(f"{found['kind']} {found['metadata']['name']}: {error}")


def pod_specs(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for found in objects:
        template = found.get("template") or found.get("spec", {}).get("template")
        if template:
            yield found["metadata"]["name"], template["spec"]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that combinations that no overlay contains can be rendered: kustomize takes relative paths only."""
    folder = tmp_path_factory.mktemp("manifests") / "k8s"
    shutil.copytree(KUBERNETES, folder)
    return folder


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_what_kubernetes_takes(overlay: str) -> None:
    validate(rendered(KUBERNETES / "overlays" / overlay))


def images_without_tag(objects: list[dict[str, Any]]) -> list[str]:
    images = [one["image"] for _, spec in pod_specs(objects) for one in spec["containers"]]
    assert images
    return [image for image in images if ":" not in image]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_image_of_an_overlay_has_a_tag(overlay: str) -> None:
    assert images_without_tag(rendered(KUBERNETES / "overlays" / overlay)) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_image_of_a_component_has_a_tag(component: str, scratch: Path) -> None:
    assert images_without_tag(combined(scratch, (component,))) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_is_what_kubernetes_takes(component: str, scratch: Path) -> None:
    validate(combined(scratch, (component,)))


def combined(scratch: Path, components: tuple[str, ...]) -> list[dict[str, Any]]:
    folder = scratch / "overlays" / ("-".join(components) or "none")
    folder.mkdir(exist_ok=True)
    wanted = {"resources": ["../../base"], "components": [f"../../components/{name}" for name in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return rendered(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_combination_of_components_is_what_kubernetes_takes(scratch: Path) -> None:
    assert len(set(COMBINATIONS)) == (1 + len(WAYS_TO_A_GPU)) * 2 ** len(COMBINED)
    with ThreadPoolExecutor() as pool:
        for objects in pool.map(lambda components: combined(scratch, components), COMBINATIONS):
            validate(objects)


def test_a_mistake_is_found(scratch: Path) -> None:
    objects = [dict(found) for found in rendered(KUBERNETES / "base")]
    template = named(objects, "PodTemplate", "podrace-agentpod")
    template["template"]["spec"]["restartPolcy"] = "Never"
    with pytest.raises(pytest.fail.Exception, match="restartPolcy"):
        validate(objects)


@pytest.mark.parametrize("overlay", ["single-gpu", "dgx-superpod"])
def test_containers_may_do_nothing_but_their_work(overlay: str) -> None:
    for name, spec in pod_specs(rendered(KUBERNETES / "overlays" / overlay)):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            allowed = container["securityContext"]
            assert allowed["readOnlyRootFilesystem"] is True, container["name"]
            assert allowed["allowPrivilegeEscalation"] is False
            assert allowed["capabilities"]["drop"] == ["ALL"]


def test_only_the_orchestrator_gets_a_service_account_token() -> None:
    objects = rendered(KUBERNETES / "base")
    with_token = [name for name, spec in pod_specs(objects) if spec.get("automountServiceAccountToken") is not False]
    assert with_token == ["podrace-orchestrator"]


def job_on(overlay: str, layout: Any, hosts: int, store: str) -> dict[str, Any]:
    """Returns the Job that the launcher makes of an overlay's template."""
    template = named(rendered(KUBERNETES / "overlays" / overlay), "PodTemplate", "podrace-agentpod")
    spec = PodSpec(layout=layout, workers=1, learners=hosts, cores=2.0, memory_bytes=1 << 30, gpus=hosts, hosts=hosts)
    pod_environment = PodEnvironment("o:1", "l:2", store, Path(), Path(), "", 60.0, TelemetryConfig())
    owner = owner_of("podrace", "race")
    owner["metadata"]["uid"] = "0"
    options = KubernetesOptions(unprotected_collectives=True)
    return dict(job_of(NewPod("race-p0", "race", spec), pod_environment, options, template, owner))


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize(
    ("layout", "hosts"), [(LAYOUT_SEPARATE, 1), (LAYOUT_SEPARATE, 2), (LAYOUT_FUSED, 1), (LAYOUT_FUSED, 2)]
)
def test_the_jobs_that_the_launcher_makes_of_each_template_are_what_kubernetes_takes(
    overlay: str, layout: Any, hosts: int
) -> None:
    job = job_on(overlay, layout, hosts, "minio+http://s:9000/podrace")
    owner = owner_of("podrace", "race")
    owner["metadata"]["uid"] = "0"
    validate([job, owner, event_of("pod_started", "race-p0: why", owner, "podrace")])
    (pod,) = [each for _, each in pod_specs([job])]
    assert pod["automountServiceAccountToken"] is False
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["containers"])


SERVICES: dict[str, type[Any]] = {"orchestrator": OrchestratorConfig, "leaderboard": LeaderboardConfig}
CHECKS: dict[str, Callable[[Any], None]] = {"orchestrator": check_orchestrator, "leaderboard": check_leaderboard}
"""What each service calls before it opens anything."""


def container_environment(objects: list[dict[str, Any]], container: dict[str, Any]) -> dict[str, str]:
    """Returns the environment of a container; values that Kubernetes fills in are left out."""
    environ: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environ |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    return environ | {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}


def service_configuration(
    objects: list[dict[str, Any]], service: str, secrets: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> Any:
    """Reads the configuration of a service as its container does, and checks it as the service does.

    `secrets` has values of Secrets by name and key.
    """
    spec = named(objects, "StatefulSet", f"podrace-{service}")["spec"]["template"]["spec"]
    (container,) = [each for each in spec["containers"] if each["name"] == service]
    environ = container_environment(objects, container)
    for entry in container.get("env", ()):
        secret = entry.get("valueFrom", {}).get("secretKeyRef")
        if secret and (secret["name"], secret["key"]) in secrets:
            environ[entry["name"]] = secrets[secret["name"], secret["key"]]
    config = config_from_arguments(SERVICES[service], container.get("args", []), program=service, environ=environ)
    CHECKS[service](config)
    return config


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_service_accepts_the_configuration_of_every_overlay(overlay: str, service: str) -> None:
    assert service_configuration(rendered(KUBERNETES / "overlays" / overlay), service).store


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_backs_up_both_databases_and_restores_them_before_it_rebuilds(overlay: str, service: str) -> None:
    backup = service_configuration(rendered(KUBERNETES / "overlays" / overlay), service).backup
    assert 0 < backup.period_seconds <= 60
    assert backup.rebuild
    assert backup.name == BackupConfig().name, "the leaderboard grants access to the backups of one name"


def test_databases_of_postgresql_are_not_backed_up_here(scratch: Path) -> None:
    for service in SERVICES:
        assert service_configuration(combined(scratch, ("postgresql",)), service).backup.period_seconds == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_leaderboard_has_the_keys_of_the_store(overlay: str) -> None:
    holders = {
        name
        for name, spec in pod_specs(rendered(KUBERNETES / "overlays" / overlay))
        for container in [*spec["containers"], *spec.get("initContainers", [])]
        for entry in container.get("env", ())
        if entry.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == "podrace-store"
    }
    assert holders - {"podrace-store"} == {"podrace-leaderboard"}


def test_a_store_with_its_own_authority_is_trusted_by_every_process_that_transfers_files(scratch: Path) -> None:
    for name, spec in pod_specs(combined(scratch, ("external-store", "store-authority"))):
        (container,) = [each for each in spec["containers"] if each["name"] == name.removeprefix("podrace-")]
        environ = {each["name"]: each.get("value") for each in container["env"]}
        assert environ["PODRACE_STORE_CA_FILE"] == "/etc/podrace/ca/ca.crt"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_that_hang_together_keep_their_gpus_for_minutes_and_train_on_without_an_orchestrator_for_longer(
    overlay: str,
) -> None:
    config = service_configuration(rendered(KUBERNETES / "overlays" / overlay), "orchestrator")
    assert config.lease_duration_seconds + config.silent_seconds < config.together_silent_seconds <= 180
    assert config.together_silent_seconds <= config.orphan_seconds + config.kill_seconds


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("component", COMPONENTS)
def test_each_service_accepts_the_configuration_of_every_component(component: str, service: str, scratch: Path) -> None:
    assert service_configuration(combined(scratch, (component,)), service).store


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_role_of_a_pod_accepts_the_configuration_that_the_launcher_gives_it(overlay: str) -> None:
    objects = rendered(KUBERNETES / "overlays" / overlay)
    store = service_configuration(objects, "orchestrator").store
    for container in job_on(overlay, LAYOUT_SEPARATE, 1, store)["spec"]["template"]["spec"]["containers"]:
        environ = container_environment(objects, container)
        config = config_from_arguments(PodConfig, container["args"][1:], program="agentpod", environ=environ)
        assert config.store == store


def test_the_store_that_a_comment_names_is_one_that_the_program_knows() -> None:
    text = (KUBERNETES / "components" / "external-store" / "kustomization.yaml").read_text()
    uris = re.findall(r"[a-z+]+://[^\s;]+", text)
    assert uris
    for uri in uris:
        check_uri(uri)


def test_a_store_of_an_unknown_scheme_is_refused() -> None:
    objects = json.loads(json.dumps(rendered(KUBERNETES / "base")))
    for found in objects:
        if found["kind"] == "ConfigMap":
            found["data"] = {key: value.replace("minio+http", "minio+https") for key, value in found["data"].items()}
    for service in SERVICES:
        with pytest.raises(InvalidArgument, match=r"unknown scheme 'minio\+https'"):
            service_configuration(objects, service)


def test_functions_of_plugins_run_in_a_container_without_what_the_leaderboard_has(scratch: Path) -> None:
    objects = combined(scratch, ("plugins", "tls", "token-review"))
    spec = named(objects, "StatefulSet", "podrace-leaderboard")["spec"]["template"]["spec"]
    (host,) = [each for each in spec["containers"] if each["name"] == "plugins"]
    config = PluginConfig()
    assert host["securityContext"]["runAsUser"] == config.host_uid != spec["securityContext"]["runAsUser"]
    assert host["securityContext"]["runAsGroup"] == spec["securityContext"]["runAsGroup"]
    assert host["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not spec.get("shareProcessNamespace")
    mounts = {each["mountPath"]: each["name"] for each in host["volumeMounts"]}
    kinds = {each["name"]: each for each in spec["volumes"]}
    assert all("emptyDir" in kinds[name] for name in mounts.values()), "no key, certificate, database or token"
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in mounts
    assert str(HostConfig().socket.parents[1]) in mounts
    assert "envFrom" not in host
    assert [each["name"] for each in host["env"]] == ["PODRACE_PLUGIN_HOST__ALLOW__MODULES"]


SERVING_SECRET = ("podrace-serving-tls", SpiffeName("policy-server"))
DASHBOARD_SECRET = ("podrace-dashboard-tls", SpiffeName("viewer", "dashboard"))
SECRETS = {
    "podrace-orchestrator": ("podrace-orchestrator-tls", SpiffeName("orchestrator")),
    "podrace-leaderboard": ("podrace-leaderboard-tls", SpiffeName("leaderboard")),
    "podrace-agentpod": ("podrace-agentpod-tls", SpiffeName("pod-role")),
}
"""The Secret that each of our processes mounts, and the name in its certificate."""


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_process_of_every_overlay_has_the_certificate_of_its_own_role(overlay: str, name: str) -> None:
    (spec,) = [spec for found, spec in pod_specs(rendered(KUBERNETES / "overlays" / overlay)) if found == name]
    (container,) = [each for each in spec["containers"] if each["name"] == name.removeprefix("podrace-")]
    environ = {each["name"]: each.get("value") for each in container["env"]}
    for variable, file in (("CERTIFICATE", "tls.crt"), ("KEY", "tls.key"), ("AUTHORITY", "ca.crt")):
        assert environ[f"PODRACE_TLS_{variable}_FILE"] == f"/etc/podrace/tls/{file}"
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/etc/podrace/tls"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == SECRETS[name][0]
    assert mount["readOnly"]
    secrets = {
        each["secret"]["secretName"]: each["secret"].get("items") for each in spec["volumes"] if "secret" in each
    }
    of_mesh_key = {"podrace-orchestrator": "tls.key", "podrace-leaderboard": "tls.crt"}.get(name)
    expected: dict[str, Any] = {SECRETS[name][0]: None}
    if of_mesh_key:
        expected["podrace-mesh-key"] = [{"key": of_mesh_key, "path": of_mesh_key}]
    assert secrets == expected, "no process has the key of another, and only the orchestrator signs"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_has_network_policies_and_no_service_that_may_be_insecure(overlay: str) -> None:
    objects = rendered(KUBERNETES / "overlays" / overlay)
    policies = {each["metadata"]["name"] for each in objects if each["kind"] == "NetworkPolicy"}
    assert {"podrace-agentpod", "podrace-services"} <= policies
    for service in SERVICES:
        assert not service_configuration(objects, service).server.insecure


def test_cert_manager_makes_the_secrets_that_are_mounted_with_the_names_of_their_roles(scratch: Path) -> None:
    objects = combined(scratch, ("cert-manager", "tls"))
    made = {each["spec"]["secretName"]: each["spec"] for each in objects if each["kind"] == "Certificate"}
    for name, (secret, spiffe) in {
        **SECRETS,
        "podrace-serving": SERVING_SECRET,
        "podrace-dashboard": DASHBOARD_SECRET,
    }.items():
        spec = made[secret]
        assert [SpiffeName.parse(uri) for uri in spec["uris"]] == [spiffe]
        assert spec["issuerRef"] == {"kind": "Issuer", "name": "podrace"}
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert (f"*.{name}" if name == "podrace-agentpod" else name) in spec["dnsNames"]
    assert made["podrace-authority"]["isCA"] is True
    assert made["podrace-mesh-key"]["privateKey"]["algorithm"] == "Ed25519"
    assert made["podrace-mesh-key"]["issuerRef"]["name"] == "podrace-self-signed", "no certificate of the mesh"
    assert named(objects, "Issuer", "podrace")["spec"] == {"ca": {"secretName": "podrace-authority"}}
    operator = made["podrace-operator-tls"]
    assert SpiffeName.parse(operator["uris"][0]).role == "operator"
    assert "server auth" not in operator["usages"]


def test_callers_with_tokens_have_ports_and_the_services_may_review_tokens_and_no_more(scratch: Path) -> None:
    objects = combined(scratch, ("token-review", "tls"))
    assert named(objects, "ClusterRole", "podrace-token-review")["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    ]
    for service in SERVICES:
        config = service_configuration(objects, service)
        port = int(config.server.token_listen.rpartition(":")[2])
        ports = named(objects, "Service", f"podrace-{service}")["spec"]["ports"]
        assert port in [each["port"] for each in ports]
        assert config.access.kubernetes.audience == "podrace"
        spec = named(objects, "StatefulSet", f"podrace-{service}")["spec"]["template"]["spec"]
        assert spec.get("automountServiceAccountToken") is not False
    assert service_configuration(objects, "orchestrator").token_leaderboard.endswith(f":{port}")


def test_the_secrets_that_the_command_prints_are_those_that_are_mounted() -> None:
    assert {secret: spiffe.path for secret, spiffe in (*SECRETS.values(), SERVING_SECRET, DASHBOARD_SECRET)} == {
        secret: path for path, secret in PRINTED_SECRETS.items()
    }


def test_the_orchestrator_may_do_what_its_launcher_asks_for_and_no_more() -> None:
    objects = rendered(KUBERNETES / "base")
    rules = named(objects, "Role", "podrace-orchestrator")["rules"]
    allowed = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {
        ("jobs", "create"), ("jobs", "list"), ("jobs", "delete"),
        ("pods", "list"), ("pods", "delete"), ("pods/log", "get"),
        ("configmaps", "create"), ("configmaps", "get"), ("configmaps", "list"), ("configmaps", "delete"),
        ("events", "create"), ("events", "list"),
        ("resourcequotas", "list"), ("podtemplates", "get"), ("secrets", "create"),
    }  # fmt: skip
    assert named(objects, "ClusterRole", "podrace-capacity")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}
    ]


def test_databases_belong_to_one_pod_at_a_time() -> None:
    objects = rendered(KUBERNETES / "base")
    for name in ("podrace-orchestrator", "podrace-leaderboard"):
        spec = named(objects, "StatefulSet", name)["spec"]
        assert spec["replicas"] == 1
        (claim,) = spec["volumeClaimTemplates"]
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


@pytest.mark.parametrize(
    ("component", "resource", "claims"),
    [
        ("gpu-dedicated", "nvidia.com/gpu", None),
        ("gpu-fused", "nvidia.com/gpu", None),
        ("gpu-node", "nvidia.com/gpu", None),
        ("gpu-mps", "nvidia.com/gpu.shared", None),
        ("gpu-dra", "", [{"name": "gpu"}]),
    ],
)
def test_each_gpu_component_configures_launcher_and_template(
    component: str, resource: str, claims: object, scratch: Path
) -> None:
    objects = combined(scratch, (component,))
    (settings,) = [
        found["data"] for found in objects
        if found["kind"] == "ConfigMap" and found["metadata"]["name"].startswith("podrace-orchestrator")
    ]  # fmt: skip
    assert settings["PODRACE_ORCHESTRATOR__LAUNCHERS__KUBERNETES__GPU_RESOURCE"] == resource
    spec = named(objects, "PodTemplate", "podrace-agentpod")["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"].startswith("podrace/agentpod-cuda:")
    assert container.get("resources", {}).get("claims") == claims
    assert "nvidia.com/gpu" in [each["key"] for each in spec["tolerations"]]


@pytest.mark.parametrize("components", [(), ("tls",), ("network-policies", "tls")], ids="-".join)
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_migrates_its_database_is_alive_and_not_ready(
    service: str, components: tuple[str, ...], scratch: Path
) -> None:
    objects = combined(scratch, components)
    spec = named(objects, "StatefulSet", f"podrace-{service}")["spec"]["template"]["spec"]
    (container,) = [each for each in spec["containers"] if each["name"] == service]
    # This port answers before the database is open; that for calls does not.
    host, _, port = service_configuration(objects, service).server.health_listen.rpartition(":")
    assert host == "0.0.0.0", "the kubelet asks from outside"
    assert container["readinessProbe"]["grpc"] == {"port": int(port)}
    assert container["livenessProbe"]["grpc"] == {"port": int(port), "service": LIVENESS}
    startup = container["startupProbe"]
    assert startup["grpc"] == container["livenessProbe"]["grpc"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_migrates_its_database_is_alive_for_the_probes_of_old_clusters(service: str) -> None:
    objects = rendered(KUBERNETES / "overlays" / "local")
    spec = named(objects, "StatefulSet", f"podrace-{service}")["spec"]["template"]["spec"]
    (container,) = [each for each in spec["containers"] if each["name"] == service]
    port = int(service_configuration(objects, service).server.health_listen.rpartition(":")[2])
    assert container["livenessProbe"]["tcpSocket"] == container["startupProbe"]["tcpSocket"] == {"port": port}
    assert container["readinessProbe"]["tcpSocket"] == {"port": "grpc"}, "it listens there when it answers calls"


def test_a_store_elsewhere_takes_the_place_of_the_one_inside(scratch: Path) -> None:
    kept = [(each["kind"], each["metadata"]["name"]) for each in combined(scratch, ("external-store",))]
    assert ("StatefulSet", "podrace-store") not in kept
    assert ("Service", "podrace-store") not in kept
    assert ("StatefulSet", "podrace-leaderboard") in kept


def test_the_overlay_for_old_clusters_has_nothing_that_they_refuse() -> None:
    objects = rendered(KUBERNETES / "overlays" / "local")
    for _, spec in pod_specs(objects):
        for container in spec["containers"]:
            probes = [container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")]
            assert not any("grpc" in probe for probe in probes)
            assert container["imagePullPolicy"] == "Never"
    assert not any("ReadWriteOncePod" in str(found) or "endPort" in str(found) for found in objects)
