"""What the files of compose promise, read as compose reads them (YAML merges resolved), without an engine."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboard_arguments import read_arguments

from agentpod.config import PodConfig
from leaderboard.config import Config as LeaderboardConfig
from leaderboard.config import check as check_leaderboard
from leaderboard.plugins.host import HostConfig
from orchestrator.config import Config as OrchestratorConfig
from orchestrator.config import check as check_orchestrator
from podrace.certificates.folder import STANDARD
from podrace.checkpoint_store import check_uri
from podrace.config import config_from_arguments
from podrace.dashboard.access import names_of
from podrace.serving.config import ServingConfig

COMPOSE = Path(__file__).parents[2] / "deploy/compose"
BASE = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = BASE["services"]
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((COMPOSE / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
SETTINGS = dict(
    line.split("=", 1) for line in (COMPOSE / ".env").read_text().splitlines() if line and not line.startswith("#")
)


def keys(service: str, prefix: str) -> list[list[str]]:
    """Keys of the configuration that a service sets by its environment."""
    names = [name.removeprefix(prefix) for name in SERVICES[service]["environment"] if name.startswith(prefix)]
    return [name.lower().split("__") for name in names]


def test_only_the_orchestrator_that_starts_pods_has_the_socket() -> None:
    holders = {name for name, service in SERVICES.items() if "docker.sock" in str(service.get("volumes", ""))}
    assert holders == {"orchestrator"}
    assert SERVICES["orchestrator"]["profiles"] == ["docker"]


def test_one_orchestrator_is_chosen_by_the_profile_and_both_answer_under_one_name() -> None:
    assert SETTINGS["COMPOSE_PROFILES"] == "docker"
    assert SERVICES["orchestrator-fixed"]["profiles"] == SERVICES["agentpod"]["profiles"] == ["fixed"]
    assert SERVICES["orchestrator-fixed"]["networks"]["default"]["aliases"] == ["orchestrator"]


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "store"])
def test_every_container_of_the_project_is_hardened_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus"} <= service.keys()


@pytest.mark.parametrize(
    ("service", "prefix", "config"),
    [
        ("orchestrator", "PODRACE_ORCHESTRATOR__", OrchestratorConfig),
        ("orchestrator-fixed", "PODRACE_ORCHESTRATOR__", OrchestratorConfig),
        ("agentpod", "PODRACE_AGENTPOD__", PodConfig),
        ("serving", "PODRACE_SERVING__", ServingConfig),
        ("leaderboard", "PODRACE_LEADERBOARD__", LeaderboardConfig),
        ("plugins", "PODRACE_PLUGIN_HOST__", HostConfig),
    ],
)
def test_every_setting_of_a_service_is_a_key_that_it_has(service: str, prefix: str, config: type[Any]) -> None:
    found = keys(service, prefix)
    assert found
    for path in found:
        there: Any = config
        for key in path:
            fields = {name: field.type for name, field in there.__dataclass_fields__.items()}
            assert key in fields, f"{service}: {'.'.join(path)} is no key of {config.__name__}"
            there = fields[key]


@pytest.mark.parametrize(
    ("service", "program", "config", "check"),
    [
        ("leaderboard", "leaderboard", LeaderboardConfig, check_leaderboard),
        ("orchestrator", "orchestrator", OrchestratorConfig, check_orchestrator),
        ("orchestrator-fixed", "orchestrator", OrchestratorConfig, check_orchestrator),
        ("agentpod", "agentpod", PodConfig, lambda read: check_uri(read.store)),
    ],
)
def test_every_service_accepts_its_configuration(
    service: str, program: str, config: type[Any], check: Callable[[Any], None]
) -> None:
    environ = image_environment(program) | {
        name: defaults_filled_in(str(value)) for name, value in SERVICES[service]["environment"].items()
    }
    check(config_from_arguments(config, [], program=program, environ=environ))


@pytest.mark.parametrize(
    ("service", "config"),
    [
        ("leaderboard", LeaderboardConfig),
        ("orchestrator", OrchestratorConfig),
        ("orchestrator-fixed", OrchestratorConfig),
    ],
)
def test_both_databases_are_backed_up_and_only_the_leaderboard_has_the_keys_of_the_store(
    service: str, config: type[Any]
) -> None:
    program = service.partition("-")[0]
    environ = image_environment(program) | {
        name: defaults_filled_in(str(value)) for name, value in SERVICES[service]["environment"].items()
    }
    backup = config_from_arguments(config, [], program=program, environ=environ).backup
    assert 0 < backup.period_seconds <= 60
    assert backup.rebuild
    assert ("store_secret_key" in SERVICES[service].get("secrets", ())) == (service == "leaderboard")


def test_the_policy_server_accepts_its_configuration_and_has_no_keys_of_the_store() -> None:
    environ = image_environment("serving") | {
        name: defaults_filled_in(str(value)) for name, value in SERVICES["serving"]["environment"].items()
    }
    environ["PODRACE_SERVING__TOURNAMENT"] = "cartpole-2xxpit"
    arguments = SERVICES["serving"]["command"]
    read = config_from_arguments(ServingConfig, arguments, program="podrace.serving", environ=environ)
    assert (read.tournament, read.orchestrator) == ("cartpole-2xxpit", "orchestrator:50051")
    assert read.access.public_keys == ("/etc/podrace/tls/mesh.pub",)
    ports = {port.rpartition(":")[2] for port in SERVICES["serving"]["ports"]}
    assert ports == {one.rpartition(":")[2] for one in (read.server.listen, read.server.token_listen, read.rest_listen)}
    assert "secrets" not in SERVICES["serving"]
    assert SERVICES["serving"]["profiles"] == ["serving"], "it needs a tournament, so it is not started by default"


def test_the_dashboard_starts_with_its_arguments_and_each_person_signs_in() -> None:
    service = SERVICES["dashboard"]
    found = read_arguments(service["command"])
    settings = found.settings
    settings.check()
    assert (found.orchestrator, settings.port, settings.sign_in) == ("orchestrator:50051", 7780, True)
    assert names_of(settings.host, settings.names) >= {"localhost", "127.0.0.1"}, "other host names are refused"
    assert settings.insecure is False
    assert [port.rpartition(":")[2] for port in service["ports"]] == [str(settings.port)]
    assert service["volumes"] == ["tls-dashboard:/etc/podrace/tls:ro"], "no key of the store or of the mesh"
    assert service["healthcheck"]["test"][3:] == [
        "podrace.dashboard.live",
        "https://127.0.0.1:7780",
        "/etc/podrace/tls/ca.crt",
    ]
    assert service["profiles"] == ["dashboard"]
    assert "secrets" not in service


def test_functions_of_plugins_run_as_another_user_with_a_socket_and_nothing_else() -> None:
    host, leaderboard = SERVICES["plugins"], SERVICES["leaderboard"]
    environ = image_environment("leaderboard")
    config = config_from_arguments(LeaderboardConfig, [], program="leaderboard", environ=environ)
    own = config_from_arguments(HostConfig, [], program="plugin-host", environ=environ)
    assert config.plugins.host == f"unix:{own.socket}"
    assert host["user"] == f"{config.plugins.host_uid}:10001", "the group of the leaderboard may call, and no one else"
    assert host["network_mode"] == "none"
    assert host["volumes"] == ["plugins:/run/podrace/plugins"]
    assert "plugins:/run/podrace/plugins:ro" in leaderboard["volumes"]
    assert host["environment"].keys() == {"PODRACE_PLUGIN_HOST__ALLOW__MODULES"}
    assert not {"secrets", "pid", "ipc", "group_add"} & host.keys()
    assert (
        f"-o {config.plugins.host_uid} -g 10001 -m 0750 /run/podrace/plugins"
        in (COMPOSE.parent / "Dockerfile").read_text()
    )


TLS = {"tls.crt": "CERTIFICATE", "tls.key": "KEY", "ca.crt": "AUTHORITY"}
CERTIFICATES = {
    "orchestrator": "orchestrator",
    "orchestrator-fixed": "orchestrator",
    "leaderboard": "leaderboard",
    "agentpod": "pod-leader",
    "serving": "policy-server",
    "command": "operator",
    "dashboard": "dashboard",
}
"""The certificate that each service presents."""


def volumes(service: str) -> dict[str, str]:
    """Sources of the mounts of a service by their target."""
    found = (volume.split(":") for volume in SERVICES[service].get("volumes", ()) if volume.startswith("tls-"))
    return {target: source for source, target, *_ in found}


@pytest.mark.parametrize(("service", "certificate"), CERTIFICATES.items())
def test_every_process_has_the_certificate_of_its_own_role_and_no_other(service: str, certificate: str) -> None:
    environ = SERVICES[service]["environment"]
    assert {environ[f"PODRACE_TLS_{name}_FILE"]: file for file, name in TLS.items()} == {
        f"/etc/podrace/tls/{file}": file for file in TLS
    }
    assert environ["PODRACE_TLS_REVOCATION_FILE"] == "/etc/podrace/tls/ca.crl"
    assert volumes(service) == {"/etc/podrace/tls": f"tls-{certificate}"}
    assert SERVICES[service].get("depends_on"), "a volume is filled before it is mounted"


def test_the_orchestrator_signs_tokens_and_the_leaderboard_has_the_public_key() -> None:
    for service in ("orchestrator", "orchestrator-fixed"):
        assert SERVICES[service]["environment"]["PODRACE_ORCHESTRATOR__ACCESS__MESH_KEY"] == "/etc/podrace/tls/mesh.key"
    environ = SERVICES["leaderboard"]["environment"]
    assert environ["PODRACE_LEADERBOARD__ACCESS__PUBLIC_KEYS"] == "/etc/podrace/tls/mesh.pub"


def test_pods_that_the_orchestrator_starts_get_the_certificate_of_a_role_of_a_pod() -> None:
    named = SERVICES["orchestrator"]["environment"]["PODRACE_ORCHESTRATOR__LAUNCHERS__DOCKER__TLS"]
    assert defaults_filled_in(named) == "podrace_tls-pod-role"
    assert "tls-pod-role" in BASE["volumes"]


def test_the_certificates_are_made_where_the_services_mount_them() -> None:
    made = SERVICES["certificates"]
    only = {argument.removeprefix("--only=") for argument in made["entrypoint"] if argument.startswith("--only=")}
    assert only <= {name.path for name in STANDARD}
    folder = "/etc/podrace/certificates"
    mounted = {target.removeprefix(f"{folder}/"): source for target, source in volumes("certificates").items()}
    assert set(mounted) == {*only, "authority"}
    assert {source.removeprefix("tls-") for source in mounted.values()} == {
        *CERTIFICATES.values(), "pod-role", "authority",
    }  # fmt: skip
    assert "tls-authority" not in {source for name in CERTIFICATES for source in volumes(name).values()}
    dockerfile = (COMPOSE.parent / "Dockerfile").read_text()
    for path in mounted:
        assert f"certificates/{path} " in dockerfile.replace(";", " "), path


@pytest.mark.parametrize("service", ["orchestrator", "orchestrator-fixed", "leaderboard", "serving", "dashboard"])
def test_the_certificate_of_a_service_names_the_host_that_others_call(service: str) -> None:
    called = {"orchestrator-fixed": "orchestrator"}.get(service, service)
    (hosts,) = [found for name, found in STANDARD.items() if name.path.rpartition("/")[2] == CERTIFICATES[service]]
    assert called in hosts
    assert "127.0.0.1" in hosts


def test_no_service_is_allowed_to_be_insecure() -> None:
    assert "insecure" not in (COMPOSE / "compose.yaml").read_text().lower()


def test_the_bucket_is_created_for_the_store_that_the_services_use() -> None:
    created = defaults_filled_in(SERVICES["bucket"]["entrypoint"][-1])
    assert created == defaults_filled_in(SERVICES["orchestrator"]["environment"]["PODRACE_ORCHESTRATOR__STORE"])


def image_environment(program: str) -> dict[str, str]:
    """Returns the settings that the image of a program sets."""
    text = (COMPOSE.parent / "Dockerfile").read_text()
    return dict(re.findall(rf"(PODRACE_{program.upper()}__\w+)=(\S+)", text))


@pytest.mark.parametrize(
    ("program", "hours"),
    [
        pytest.param("leaderboard", 1, id="leaderboard-that-migrates-its-database"),
        pytest.param("orchestrator", 1, id="orchestrator-that-migrates-its-database"),
        pytest.param("serving", 24 * 365, id="policy-server-that-waits-for-a-champion"),
    ],
)
def test_a_service_that_is_not_ready_yet_is_starting_and_not_unhealthy(program: str, hours: int) -> None:
    text = (COMPOSE.parent / "Dockerfile").read_text()
    (stage,) = re.findall(rf"^FROM service AS {program}\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    # Compose gives up on a dependency that is unhealthy; failed checks of the start period do not count.
    assert int(re.findall(r"HEALTHCHECK .*--start-period=(\d+)h ", stage)[0]) >= hours
    assert image_environment(program)[f"PODRACE_{program.upper()}__SERVER__HEALTH_LISTEN"] in stage.partition("CMD")[2]
    assert "healthcheck" not in SERVICES[program]


@pytest.mark.parametrize("program", ["leaderboard", "orchestrator"])
def test_an_image_with_the_driver_of_postgresql_names_the_folder_of_the_systems_authorities(program: str) -> None:
    text = (COMPOSE.parent / "Dockerfile").read_text()
    (extras,) = re.findall(rf'^ARG {program.upper()}_EXTRAS="(.*)"$', text, re.MULTILINE)
    assert "postgresql" in extras.split()
    (stage,) = re.findall(rf"^FROM service AS {program}\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert "SSL_CERT_DIR=/etc/ssl/certs" in stage
    assert "SSL_CERT_FILE" not in stage, "the store would trust the authorities of that file only"


def defaults_filled_in(value: str) -> str:
    """Replaces variables by their defaults, as compose does where they are not set."""
    return re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", value)


def test_images_that_are_not_ours_are_pinned_by_digest() -> None:
    pinned = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
    for name in ("PODRACE_STORE_IMAGE", "PODRACE_PROMETHEUS_IMAGE", "PODRACE_GRAFANA_IMAGE"):
        assert pinned.fullmatch(SETTINGS[name]), name


def test_pods_with_gpus_have_shared_memory_for_eight_processes_that_use_nccl() -> None:
    services = yaml.safe_load((COMPOSE / "compose.gpu.yaml").read_text())["services"]
    environ = {key: defaults_filled_in(value) for key, value in services["orchestrator"]["environment"].items()}
    options = config_from_arguments(OrchestratorConfig, [], program="orchestrator", environ=environ).launchers.docker
    assert options.shm_bytes >= 8 << 30, "`podrace qualify` expects 1 GiB for each GPU"


def test_what_is_published_is_seen_from_this_host_alone() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port}"


def test_pods_are_found_where_the_orchestrator_lists_them() -> None:
    from orchestrator.pool.prometheus_targets import PATH

    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["pods"]["http_sd_configs"][0]["url"] == f"http://orchestrator:9090{PATH}"


def test_every_replica_of_a_service_is_a_target_with_the_name_of_its_component() -> None:
    config = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    for job, names in {"services": ["orchestrator", "leaderboard"], "serving": ["serving"]}.items():
        assert not jobs[job].keys() & {"static_configs"}
        (discovery,) = jobs[job]["dns_sd_configs"]
        assert (discovery["names"], discovery["type"], discovery["port"]) == (names, "A", 9090)
        assert jobs[job]["relabel_configs"] == [{"source_labels": ["__meta_dns_name"], "target_label": "component"}]
        for name in names:
            expression = ALERTS["PodraceServiceMissing"]["expr"]
            assert re.search(rf'up{{job=~"[^"]*\b{job}\b[^"]*", component="{name}"}}', expression)


def test_every_image_that_is_not_built_here_and_every_base_has_a_digest() -> None:
    dockerfile = (COMPOSE.parent / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", dockerfile, re.MULTILINE)
    assert SETTINGS["PODRACE_PYTHON_IMAGE"] == base
    pulled = {key: value for key, value in SETTINGS.items() if key.endswith("_IMAGE")}
    assert len(pulled) == 4
    for name, image in pulled.items():
        assert re.search(r"@sha256:[0-9a-f]{64}$", image), name
    store = (COMPOSE.parent / "k8s/base/store.yaml").read_text()
    assert re.findall(r"^ +image: (.*)$", store, re.MULTILINE) == [SETTINGS["PODRACE_STORE_IMAGE"]]
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    own = set(re.findall(r" AS (\S+)$", dockerfile, re.MULTILINE))
    assert {each for each in bases if each not in own} == {"${PYTHON_IMAGE}", "${AGENTPOD_IMAGE}", "${WHEELS_IMAGE}"}
