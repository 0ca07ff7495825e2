"""The admission policies of deploy/k8s: their expressions, evaluated as the API server does, with good and bad objects.

No cluster is needed, and none has tried them: `cel-expr-python` is Google's implementation of the language in C++, the
API server has the one in Go.
"""

import copy
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import yaml
from cel_expr_python import cel
from test_manifests import KUBERNETES, job_on, named, pod_specs, rendered

from orchestrator.config import Config
from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.pod_secrets import secret_of
from orchestrator.launchers.options import KubernetesOptions
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_FUSED, LAYOUT_SEPARATE, PodSpec

FOLDER = KUBERNETES / "components" / "admission"
OBJECTS = [
    each for name in ("jobs", "pod-security") for each in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
]
POLICIES = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "ValidatingAdmissionPolicy"}
BINDINGS = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"].endswith("Binding")}
JOBS, SECRETS, PODS = "podrace-orchestrator-jobs", "podrace-orchestrator-secrets", "podrace-pod-security"
ORCHESTRATOR = "system:serviceaccount:podrace:podrace-orchestrator"
ENVIRONMENT = cel.NewEnv(variables=dict.fromkeys(("object", "params", "request"), cel.Type.DYN))
DGX = KUBERNETES / "overlays" / "dgx-superpod"
Object = dict[str, Any]
Change = Callable[[Object], Any]


def evaluated(expression: str, data: Mapping[str, Any]) -> Any:
    result = compiled(expression).eval(data=dict(data))
    assert result.type() != cel.Type.ERROR, f"{expression}: {result.value()}"
    return result.value()


@cache
def compiled(expression: str) -> Any:
    return ENVIRONMENT.compile(expression)


def with_variables(policy: Mapping[str, Any], expression: str) -> str:
    """Replaces variables by their expressions, which may use variables that are defined before them."""
    for variable in reversed(policy.get("variables", [])):
        expression = re.sub(rf"\bvariables\.{variable['name']}\b", f"({variable['expression']})", expression)
    assert "variables." not in expression
    return expression


def refusals(name: str, found: Object, *, params: Object | None = None, user: str = ORCHESTRATOR) -> list[str]:
    """Returns the messages of the violated rules; none if the policy does not concern the request."""
    policy = POLICIES[name]
    data = {
        "object": found,
        "params": params or {},
        "request": {"userInfo": {"username": user}, "namespace": "podrace"},
    }
    if not all(evaluated(each["expression"], data) for each in policy.get("matchConditions", [])):
        return []
    rules = policy["validations"]
    return [each["message"] for each in rules if not evaluated(with_variables(policy, each["expression"]), data)]


def template(overlay: str = "dgx-superpod") -> Object:
    return named(rendered(KUBERNETES / "overlays" / overlay), "PodTemplate", "podrace-agentpod")


def job(change: Change | None = None) -> Object:
    made = copy.deepcopy(job_on("dgx-superpod", LAYOUT_SEPARATE, 2, "minio+http://s:9000/podrace"))
    if change:
        change(made)
    return made


def spec(found: Object) -> Any:
    return found["spec"]["template"]["spec"]


def learner(found: Object) -> Any:
    return next(each for each in spec(found)["containers"] if each["name"] == "learner")


# --- which Jobs the orchestrator may create -----------------------------------------------------------------------


@pytest.mark.parametrize("overlay", sorted(path.name for path in (KUBERNETES / "overlays").iterdir()))
@pytest.mark.parametrize(("layout", "hosts"), [(LAYOUT_SEPARATE, 1), (LAYOUT_SEPARATE, 2), (LAYOUT_FUSED, 1)])
def test_every_job_that_the_launcher_makes_is_admitted(overlay: str, layout: Any, hosts: int) -> None:
    made = job_on(overlay, layout, hosts, "minio+http://s:9000/podrace")
    assert refusals(JOBS, made, params=template(overlay)) == []


def test_a_template_with_more_containers_is_followed() -> None:
    own = copy.deepcopy(template())
    sidecar = {"name": "sidecar", "image": "sidecar:1", "command": ["run"]}
    own["template"]["spec"]["containers"].append(sidecar)
    made = job(lambda found: spec(found)["containers"].append(dict(sidecar)))
    assert refusals(JOBS, made, params=own) == []
    assert refusals(JOBS, made, params=template()), "the template has no such container"


def volume(found: Object, **source: Any) -> None:
    spec(found)["volumes"].append({"name": "more", **source})


def variable(found: Object, name: str, **source: Any) -> None:
    learner(found)["env"].append({"name": name, **source})


def of_secret(name: str) -> Object:
    return {"secretKeyRef": {"name": name, "key": "token"}}


CHANGES: dict[str, tuple[Change, str]] = {
    "labels of a service": (
        lambda found: found["spec"]["template"]["metadata"]["labels"].update(
            {"app.kubernetes.io/component": "leaderboard"}
        ),
        "labels",
    ),
    "annotation for AppArmor": (
        lambda found: found["spec"]["template"]["metadata"].update(annotations={"a": "unconfined"}),
        "annotations",
    ),
    "other service account": (
        lambda found: spec(found).update(serviceAccountName="podrace-orchestrator"),
        "service account",
    ),
    "token of the service account": (
        lambda found: spec(found).update(automountServiceAccountToken=True),
        "service account",
    ),
    "root": (lambda found: spec(found)["securityContext"].update(runAsNonRoot=False, runAsUser=0), "service account"),
    "secrets of registries": (
        lambda found: spec(found).update(imagePullSecrets=[{"name": "registry"}]),
        "service account",
    ),
    "network of the host": (lambda found: spec(found).update(hostNetwork=True), "namespaces of the host"),
    "processes of the host": (lambda found: spec(found).update(hostPID=True), "namespaces of the host"),
    "memory of the host": (lambda found: spec(found).update(hostIPC=True), "namespaces of the host"),
    "names of hosts": (
        lambda found: spec(found).update(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["podrace-leaderboard"]}]),
        "namespaces of the host",
    ),
    "a certain node": (lambda found: spec(found).update(nodeName="control-plane"), "nodes"),
    "nodes of others": (lambda found: spec(found).update(nodeSelector={"team": "other"}), "nodes"),
    "tainted nodes": (lambda found: spec(found)["tolerations"].append({"operator": "Exists"}), "nodes"),
    "no node affinity": (lambda found: spec(found)["affinity"].pop("nodeAffinity"), "nodes"),
    "priority": (lambda found: spec(found).update(priorityClassName="system-node-critical"), "nodes"),
    "runtime": (lambda found: spec(found).update(runtimeClassName="runc-plain"), "nodes"),
    "claimed devices": (lambda found: spec(found).update(resourceClaims=[{"name": "all"}]), "nodes"),
    "init container": (
        lambda found: spec(found).update(initContainers=[{"name": "init", "image": "other"}]),
        "init containers",
    ),
    "path of the host": (lambda found: volume(found, hostPath={"path": "/"}), "volumes"),
    "keys of the store": (lambda found: volume(found, secret={"secretName": "podrace-store"}), "volumes"),
    "a secret under the name of a shared volume": (
        lambda found: spec(found)["volumes"].append({"name": "sockets", "secret": {"secretName": "podrace-mesh-key"}}),
        "volumes",
    ),
    "other image": (lambda found: learner(found).update(image="miner:latest"), "image"),
    "more containers": (lambda found: spec(found)["containers"].append({"name": "more", "image": "miner"}), "image"),
    "shell": (lambda found: learner(found).update(command=["sh", "-c", "id"]), "command"),
    "other arguments": (lambda found: learner(found).update(args=["learner", "--set", "a=b"]), "command"),
    "no role": (lambda found: learner(found).update(args=["qualify"]), "command"),
    "no argument": (lambda found: learner(found).pop("args"), "command"),
    "hook": (
        lambda found: learner(found).update(lifecycle={"postStart": {"exec": {"command": ["id"]}}}),
        "probes and hooks",
    ),
    "probe": (
        lambda found: learner(found).update(livenessProbe={"exec": {"command": ["id"]}}),
        "probes and hooks",
    ),
    "privileged": (lambda found: learner(found)["securityContext"].update(privileged=True), "security context of each"),
    "capability": (
        lambda found: learner(found)["securityContext"]["capabilities"]["add"].append("SYS_ADMIN"),
        "security context of each",
    ),
    "no security context": (lambda found: learner(found).pop("securityContext"), "security context of each"),
    "GPUs of others": (lambda found: variable(found, "NVIDIA_VISIBLE_DEVICES", value="all"), "variables"),
    "variable of the linker": (lambda found: variable(found, "LD_PRELOAD", value="/tmp/x.so"), "variables"),
    "keys of the store in a variable": (
        lambda found: variable(found, "PODRACE_AGENTPOD__TOKEN", valueFrom=of_secret("podrace-store")),
        "variables",
    ),
    "all keys of a secret": (
        lambda found: learner(found).update(envFrom=[{"secretRef": {"name": "podrace-store"}}]),
        "variables",
    ),
    "value of a config map": (
        lambda found: variable(found, "PODRACE_AGENTPOD__A", valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}),
        "variables",
    ),
    "certificates under another path": (
        lambda found: learner(found)["volumeMounts"].append({"name": "tls", "mountPath": "/opt/own"}),
        "mounts",
    ),
    "shared memory over the program": (
        lambda found: learner(found)["volumeMounts"].append({"name": "shared-memory", "mountPath": "/opt/podrace"}),
        "mounts",
    ),
    "block device": (
        lambda found: learner(found).update(volumeDevices=[{"name": "a", "devicePath": "/dev/sda"}]),
        "mounts",
    ),
    "port of the host": (
        lambda found: learner(found)["ports"].append({"containerPort": 22, "hostPort": 22}),
        "port of the host",
    ),
    "device of the host": (
        lambda found: learner(found)["resources"]["limits"].update({"example.com/kvm": "1"}),
        "devices",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_that_is_not_made_from_the_template_is_refused(name: str) -> None:
    change, words = CHANGES[name]
    found = refusals(JOBS, job(change), params=template())
    assert len(found) >= 1
    assert any(words in message for message in found), found


def test_every_rule_about_jobs_refuses_something() -> None:
    found = {message for change, _ in CHANGES.values() for message in refusals(JOBS, job(change), params=template())}
    assert found == {each["message"] for each in POLICIES[JOBS]["validations"]}


def test_other_users_may_create_other_jobs() -> None:
    other = job(lambda found: learner(found).update(image="other"))
    assert refusals(JOBS, other, params=template(), user="system:serviceaccount:podrace:trainer") == []
    assert refusals(JOBS, other, params=template(), user="system:serviceaccount:other:podrace-orchestrator") == []


def test_the_template_that_the_policy_compares_with_is_the_one_that_the_launcher_reads() -> None:
    assert BINDINGS[JOBS]["paramRef"] == {"name": KubernetesOptions().template, "parameterNotFoundAction": "Deny"}
    assert Config().launchers.kubernetes.template == "podrace-agentpod"


# --- which Secrets ------------------------------------------------------------------------------------------------


def secret(change: Change | None = None) -> Object:
    pod_spec = PodSpec(layout=LAYOUT_SEPARATE, workers=1, learners=2, hosts=2, cores=2.0)
    environment = PodEnvironment(
        "o:1", "l:2", "minio+http://s:9000/b", KUBERNETES, KUBERNETES, "", 60.0, TelemetryConfig()
    )
    created = job()
    created["metadata"]["uid"] = "0"
    made = secret_of(NewPod("race-p0", "race", pod_spec), environment, created)
    assert made is not None
    if change:
        change(made)
    return made


def test_the_secret_of_a_pod_is_admitted() -> None:
    assert refusals(SECRETS, secret()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(type="kubernetes.io/service-account-token"),
        lambda found: found["metadata"].pop("ownerReferences"),
        lambda found: found["metadata"].update(name="podrace-store"),
    ],
)
def test_other_secrets_of_the_orchestrator_are_refused(change: Change) -> None:
    assert refusals(SECRETS, secret(change))
    assert not refusals(SECRETS, secret(change), user="system:admin")


# --- what every pod of the namespace may have -----------------------------------------------------------------------


def pod(change: Change | None = None) -> Object:
    made = {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec(job())}
    if change:
        change(made)
    return made


def first(found: Object) -> Any:
    return found["spec"]["containers"][0]


def test_every_pod_of_the_overlay_is_admitted() -> None:
    for _, found in pod_specs(rendered(DGX)):
        assert refusals(PODS, {"metadata": {}, "spec": found}) == []
    made = pod()
    assert "IPC_LOCK" in str(made)
    assert refusals(PODS, made) == []


PROBE = {"httpGet": {"host": "169.254.169.254", "port": 80}}
POD_CHANGES: dict[str, tuple[Change, str]] = {
    "Windows": (lambda found: found["spec"]["securityContext"].update(windowsOptions={"hostProcess": True}), "Windows"),
    "network": (lambda found: found["spec"].update(hostNetwork=True), "namespaces"),
    "processes": (lambda found: found["spec"].update(hostPID=True), "namespaces"),
    "memory": (lambda found: found["spec"].update(hostIPC=True), "namespaces"),
    "privileged": (lambda found: first(found)["securityContext"].update(privileged=True), "privileged"),
    "privileged debugger": (
        lambda found: found["spec"].update(ephemeralContainers=[{"securityContext": {"privileged": True}}]),
        "privileged",
    ),
    "privileged init container": (
        lambda found: found["spec"].update(initContainers=[{"securityContext": {"privileged": True}}]),
        "privileged",
    ),
    "capability": (
        lambda found: first(found)["securityContext"]["capabilities"]["add"].append("SYS_PTRACE"),
        "capability",
    ),
    "path": (
        lambda found: found["spec"]["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        "path of the host",
    ),
    "port": (lambda found: first(found)["ports"].append({"containerPort": 1, "hostPort": 1}), "port of the host"),
    "probe": (lambda found: first(found).update(readinessProbe=PROBE), "probes"),
    "hook": (lambda found: first(found).update(lifecycle={"preStop": PROBE}), "probes"),
    "AppArmor": (
        lambda found: first(found)["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
        "AppArmor",
    ),
    "AppArmor by annotation": (
        lambda found: found["metadata"].update(
            annotations={"container.apparmor.security.beta.kubernetes.io/learner": "unconfined"}
        ),
        "AppArmor",
    ),
    "SELinux": (lambda found: first(found)["securityContext"].update(seLinuxOptions={"type": "spc_t"}), "SELinux"),
    "user of SELinux": (
        lambda found: first(found)["securityContext"].update(seLinuxOptions={"user": "system_u"}),
        "SELinux",
    ),
    "proc": (lambda found: first(found)["securityContext"].update(procMount="Unmasked"), "/proc"),
    "seccomp": (lambda found: first(found)["securityContext"].update(seccompProfile={"type": "Unconfined"}), "seccomp"),
    "sysctl": (
        lambda found: found["spec"]["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
        "sysctl",
    ),
}


@pytest.mark.parametrize("name", POD_CHANGES)
def test_a_pod_beyond_the_level_baseline_is_refused(name: str) -> None:
    change, words = POD_CHANGES[name]
    (message,) = refusals(PODS, pod(change))
    assert words in message


def test_every_control_of_the_level_refuses_something() -> None:
    found = {message for change, _ in POD_CHANGES.values() for message in refusals(PODS, pod(change))}
    assert found == {each["message"] for each in POLICIES[PODS]["validations"]}


def test_the_overlay_has_the_label_that_the_policies_select_and_leaves_them_to_the_cluster() -> None:
    objects = rendered(FOLDER)
    for name in POLICIES:
        policy = named(objects, "ValidatingAdmissionPolicy", name)
        binding = named(objects, "ValidatingAdmissionPolicyBinding", name)
        assert "namespace" not in policy["metadata"] | binding["metadata"], "they are objects of the cluster"
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert "Deny" in binding["spec"]["validationActions"]
        assert binding["spec"]["policyName"] == name
    assert not {"ValidatingAdmissionPolicy"} & {each["kind"] for each in rendered(DGX)}
    labels = named(rendered(DGX), "Namespace", "podrace")["metadata"]["labels"]
    assert BINDINGS[PODS]["matchResources"]["namespaceSelector"]["matchLabels"].items() <= labels.items()
    assert labels["pod-security.kubernetes.io/warn"] == "baseline"
