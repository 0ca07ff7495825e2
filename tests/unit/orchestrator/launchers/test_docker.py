"""Tests the requests of the Docker launcher, and how it interprets the responses; the engine is faked in memory."""

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
from fake_docker import GIB, Engine

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.docker import DockerLauncher
from orchestrator.launchers.gpu_names import check_gpu_names
from orchestrator.launchers.options import DockerOptions
from orchestrator.launchers.pod_settings import roles_of
from orchestrator.launchers.store_credentials import credentials
from podrace.errors import FailedPrecondition, InvalidArgument, PodraceError, Unavailable
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_FUSED, LAYOUT_SEPARATE, PodSpec


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def launcher(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerLauncher:
    pod_environment = PodEnvironment(
        orchestrator="orchestrator:50051",
        leaderboard="leaderboard:50052",
        store="minio+http://store:9000/podrace",
        runtime_folder=tmp_path,
        log_folder=tmp_path,
        lifeline="",
        orphan_seconds=60.0,
        telemetry=TelemetryConfig(),
    )
    options = DockerOptions(image="podrace/agentpod:test", network="mesh", gpus=("0", "1"))
    monkeypatch.setattr(docker, "from_env", lambda **_: engine)
    return DockerLauncher(pod_environment, options, environ={"PODRACE_STORE_ACCESS_KEY": "key"})


def new_pod(pod_id: str = "race-p0", **changes: Any) -> NewPod:
    spec = PodSpec(layout=LAYOUT_SEPARATE, workers=1, learners=1, cores=2.0, memory_bytes=GIB)
    for key, value in changes.items():
        setattr(spec, key, value)
    return NewPod(pod_id, "race", spec)


@pytest.mark.parametrize(
    ("mounts", "folders"),
    [
        (("/data:/data:ro",), {"/tmp", "/var/cache/podrace"}),
        (("podrace-kernels:/var/cache/podrace",), {"/tmp"}),
        (("/srv/kernels:/var/cache/podrace:rw",), {"/tmp"}),
    ],
)
async def test_a_mounted_cache_of_kernels_replaces_that_of_each_container(
    launcher: DockerLauncher, engine: Engine, mounts: tuple[str, ...], folders: set[str]
) -> None:
    launcher._options = replace(launcher._options, mounts=mounts)
    await launcher.start(new_pod())
    for container in engine.running.values():
        assert set(container.arguments["tmpfs"]) == folders
        assert set(mounts) < set(container.arguments["volumes"])


async def test_a_separate_pod_has_one_container_per_role_and_the_leader_starts_first(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod())
    assert list(engine.running) == [f"podrace-race-p0-{role}" for role in ("learner", "worker-0", "evaluator")]
    assert [c.arguments["command"] for c in engine.running.values()] == [["learner"], ["worker-0"], ["evaluator"]]
    ((volume, options),) = engine.volume_options.items()
    assert options == {"type": "tmpfs", "device": "tmpfs", "o": f"uid=10001,gid=10001,mode=0700,size={GIB}"}
    assert volume.startswith("podrace-race-p0-")
    assert all(f"{volume}:/run/podrace:rw" in c.arguments["volumes"] for c in engine.running.values())


async def test_containers_run_without_privileges(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod(layout=LAYOUT_FUSED, cores=1.5))
    (arguments,) = (c.arguments for c in engine.running.values())
    assert arguments["read_only"]
    assert arguments["cap_drop"] == ["ALL"]
    assert arguments["security_opt"] == ["no-new-privileges:true"]
    assert (arguments["nano_cpus"], arguments["mem_limit"], arguments["network"]) == (1_500_000_000, GIB, "mesh")
    assert "privileged" not in arguments
    assert arguments["restart_policy"] is None


async def test_each_container_of_a_pod_may_use_all_that_the_pod_reserves(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod())
    limits = {(c.arguments["nano_cpus"], c.arguments["mem_limit"]) for c in engine.running.values()}
    assert (limits, len(engine.running)) == ({(2_000_000_000, GIB)}, 3)


async def test_a_container_gets_the_settings_of_its_pod(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod(gpus=1, plane="cuda"))
    arguments = engine.running["podrace-race-p0-worker-0"].arguments
    expected = {
        "PODRACE_AGENTPOD__POD_ID": "race-p0",
        "PODRACE_AGENTPOD__LAYOUT": "separate",
        "PODRACE_AGENTPOD__PLANE": "cuda",
        "PODRACE_AGENTPOD__GPUS": "0",
        "PODRACE_AGENTPOD__ORCHESTRATOR": "orchestrator:50051",
        "PODRACE_AGENTPOD__TELEMETRY__LOG_LEVEL": "info",
    }
    assert expected.items() <= arguments["environment"].items()
    leader = engine.running["podrace-race-p0-learner"].arguments["environment"]
    assert leader["PODRACE_STORE_ACCESS_KEY"] == "key"
    assert "PODRACE_STORE_ACCESS_KEY" not in arguments["environment"]
    assert arguments["device_requests"][0]["DeviceIDs"] == ["0"]
    assert arguments["device_requests"][0]["Capabilities"] == [["gpu", "compute", "utility"]]
    assert arguments["pid_mode"] == "container:podrace-race-p0-learner"


async def test_containers_get_the_certificate_of_pods_and_read_it_only(
    launcher: DockerLauncher, engine: Engine
) -> None:
    launcher._options = replace(launcher._options, tls="mesh_tls-pod-role")
    await launcher.start(new_pod())
    for container in engine.running.values():
        assert "mesh_tls-pod-role:/etc/podrace/tls:ro" in container.arguments["volumes"]
        environ = container.arguments["environment"]
        assert environ["PODRACE_TLS_KEY_FILE"] == "/etc/podrace/tls/tls.key"
        assert environ["PODRACE_TLS_AUTHORITY_FILE"] == "/etc/podrace/tls/ca.crt"


async def test_containers_without_certificates_have_no_tls(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod())
    assert not any("TLS" in name for c in engine.running.values() for name in c.arguments["environment"])


async def test_containers_with_gpus_share_processes_and_shared_memory(launcher: DockerLauncher, engine: Engine) -> None:
    launcher._options = replace(launcher._options, shm_bytes=3 * GIB)
    await launcher.start(new_pod(gpus=1))
    leader, *others = (container.arguments for container in engine.running.values())
    assert (leader["ipc_mode"], leader["shm_size"], leader["pid_mode"]) == ("shareable", 3 * GIB, None)
    for arguments in others:
        assert arguments["ipc_mode"] == arguments["pid_mode"] == "container:podrace-race-p0-learner"
        assert "shm_size" not in arguments, "the engine takes the leader's"
    await launcher.start(new_pod("race-p1"))
    assert not {"ipc_mode", "shm_size"} & engine.running["podrace-race-p1-worker-0"].arguments.keys()


async def test_the_roles_of_a_pod_share_the_network_of_its_leader_and_have_a_port_each(
    launcher: DockerLauncher, engine: Engine
) -> None:
    """Collectives meet at a loopback address, and NCCL takes containers with one host name for one host."""
    await launcher.start(new_pod(learners=2))
    leader, *others = (container.arguments for container in engine.running.values())
    assert leader["network"] == "mesh"
    assert len(others) == 4
    for arguments in others:
        assert arguments["network_mode"] == "container:podrace-race-p0-learner"
        assert "network" not in arguments
    ports = [each["environment"]["PODRACE_AGENTPOD__TELEMETRY__METRICS_LISTEN"] for each in (leader, *others)]
    assert ports == [f"0.0.0.0:{9090 + index}" for index in range(5)]
    (pod,) = await launcher.list()
    assert pod.metrics["evaluator"] == "podrace-race-p0-learner:9094"


async def test_user_code_has_a_network_and_processes_of_its_own(launcher: DockerLauncher, engine: Engine) -> None:
    pod = new_pod(learners=2, gpus=2)
    await launcher.start(replace(pod, user_code=True))
    found = {name.removeprefix("podrace-race-p0-"): c.arguments for name, c in engine.running.items()}
    assert found["learner-1"]["network_mode"] == found["learner-1"]["pid_mode"] == "container:podrace-race-p0-learner"
    for role in ("worker-0", "worker-1", "evaluator"):
        assert (found[role]["network"], found[role]["pid_mode"]) == ("mesh", None)
        assert "network_mode" not in found[role]
    (listed,) = await launcher.list()
    assert listed.metrics["worker-1"] == "podrace-race-p0-worker-1:9093"


async def test_without_a_port_the_roles_serve_no_metrics(launcher: DockerLauncher, engine: Engine) -> None:
    launcher._options = replace(launcher._options, metrics_port=0)
    await launcher.start(new_pod())
    for container in engine.running.values():
        assert container.arguments["environment"]["PODRACE_AGENTPOD__TELEMETRY__METRICS_LISTEN"] == ""


async def test_containers_of_an_earlier_version_are_scraped_by_their_own_names(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod())
    for container in engine.running.values():
        del container.arguments["labels"]["podrace.metrics"]
    (pod,) = await launcher.list()
    assert pod.metrics["evaluator"] == "podrace-race-p0-evaluator:9090"


async def test_a_pod_without_gpus_sees_none_whatever_its_image_says(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod())
    await launcher.start(new_pod("race-p1", gpus=1))
    seen = {name: c.arguments["environment"].get("NVIDIA_VISIBLE_DEVICES") for name, c in engine.running.items()}
    assert {seen[name] for name in seen if "-p0-" in name} == {"void"}
    assert {seen[name] for name in seen if "-p1-" in name} == {None}


async def test_gpus_named_by_uuid_keep_their_names_in_the_containers(launcher: DockerLauncher, engine: Engine) -> None:
    launcher._options = replace(launcher._options, gpus=("GPU-a1", "MIG-b2"))
    await launcher.start(new_pod(gpus=2))
    arguments = engine.running["podrace-race-p0-worker-0"].arguments
    assert arguments["environment"]["PODRACE_AGENTPOD__GPUS"] == "GPU-a1,MIG-b2"
    assert arguments["device_requests"][0]["DeviceIDs"] == ["GPU-a1", "MIG-b2"]


@pytest.mark.parametrize(("gpus", "message"), [(("all",), "'all' is not a GPU; list UUIDs"), (("1", "1"), "twice")])
def test_names_that_are_no_gpus_are_refused_at_start(gpus: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"docker.gpus: .*{message}"):
        check_gpu_names(gpus)


async def test_each_gpu_is_assigned_once(launcher: DockerLauncher) -> None:
    await launcher.start(new_pod("race-p0", gpus=1))
    await launcher.start(new_pod("race-p1", gpus=1))
    with pytest.raises(Unavailable, match="a pod needs 1 GPUs, 0 are free"):
        await launcher.start(new_pod("race-p2", gpus=1))
    with pytest.raises(InvalidArgument, match=r"pod.gpus = 3: launcher 'docker' has 2 GPUs"):
        await launcher.start(new_pod("race-p3", gpus=3))


async def test_a_pod_that_replaces_another_shares_its_gpus(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod("race-p0", gpus=1))
    await launcher.start(new_pod("race-p1", gpus=1))
    await launcher.start(replace(new_pod("race-p2", gpus=2), replaces="race-p0", retired=("race-p1",)))
    of_leaders = {name: one.labels["podrace.gpus"] for name, one in engine.running.items() if name.endswith("-learner")}
    assert sorted(of_leaders["podrace-race-p2-learner"].split(",")) == sorted(
        of_leaders[f"podrace-race-{name}-learner"] for name in ("p0", "p1")
    )


async def test_pods_that_start_together_get_different_gpus(
    launcher: DockerLauncher, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, create = threading.Barrier(2), engine.volumes.create

    def create_together(name: str, **options: Any) -> None:
        together.wait(timeout=10)
        create(name, **options)

    monkeypatch.setattr(engine.volumes, "create", create_together)
    await asyncio.gather(*(launcher.start(new_pod(pod_id, gpus=1)) for pod_id in ("race-p0", "race-p1")))
    assert {leader.labels["podrace.gpus"] for leader in engine.running.values()} == {"0", "1"}


async def test_a_failed_start_frees_its_gpus(launcher: DockerLauncher, engine: Engine) -> None:
    engine.failures["podrace-race-p0-learner"] = docker.errors.APIError("conflict")
    with pytest.raises(FailedPrecondition, match="conflict"):
        await launcher.start(new_pod(gpus=2))
    await launcher.start(new_pod("race-p1", gpus=2))


async def test_a_running_pod_is_listed_as_started_and_not_started_again(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod())
    await launcher.start(new_pod())
    assert not engine.removed
    (pod,) = await launcher.list()
    assert (pod.pod_id, pod.tournament_id, pod.layout) == ("race-p0", "race", LAYOUT_SEPARATE)
    assert (pod.reserved.cores, pod.reserved.memory_bytes, pod.reserved.gpus) == (2.0, GIB, 0)
    assert pod.start_time == 1795255200.0


async def test_metrics_addresses_are_container_names(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod())
    await launcher.start(new_pod("race-p1", layout=LAYOUT_FUSED))
    found = {pod.pod_id: pod.metrics for pod in await launcher.list()}
    assert found["race-p1"] == {"learner": "podrace-race-p1-learner:9090"}
    assert found["race-p0"] == {
        role: f"podrace-race-p0-learner:{port}"
        for role, port in (("learner", 9090), ("worker-0", 9091), ("evaluator", 9092))
    }
    launcher._options = DockerOptions(network="")
    assert [pod.metrics for pod in await launcher.list()] == [{}, {}]


async def test_a_pod_with_a_dead_leader_is_removed_and_its_last_log_line_kept(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod())
    leader = engine.running["podrace-race-p0-learner"]
    leader.status, leader.log = "exited", b"one\n\x1b[31merror: no space\x1b[0m\n\n"
    assert await launcher.list() == []
    assert engine.removed[0] == "podrace-race-p0-learner"
    assert not engine.running
    assert not engine.volume_options
    assert launcher.last_log_line("race-p0") == "error: no space"


async def test_without_a_log_the_exit_status_is_reported(launcher: DockerLauncher, engine: Engine) -> None:
    for pod_id, state in (("race-p0", {"ExitCode": 137}), ("race-p1", {"OOMKilled": True, "ExitCode": 137})):
        await launcher.start(new_pod(pod_id))
        leader = engine.running[f"podrace-{pod_id}-learner"]
        leader.status, leader.attrs["State"] = "exited", state
    await launcher.list()
    assert launcher.last_log_line("race-p0") == "exit code 137"
    assert launcher.last_log_line("race-p1") == "killed: out of memory"
    assert launcher.last_log_line("race-p9") == ""


async def test_containers_without_a_leader_are_removed(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod())
    del engine.running["podrace-race-p0-learner"]
    assert await launcher.list() == []
    assert not engine.running


async def test_the_volume_of_a_pod_whose_containers_were_removed_is_removed_with_the_next_list(
    launcher: DockerLauncher, engine: Engine
) -> None:
    for pod_id in ("race-p0", "race-p1"):
        await launcher.start(new_pod(pod_id))
    labels = {"podrace.scope": "another", "podrace.pod": "race-p2"}
    engine.volumes.create("another-race-p2", driver="local", driver_opts={}, labels=labels)
    engine.running = {name: one for name, one in engine.running.items() if one.labels["podrace.pod"] == "race-p1"}
    launcher._starting = {"race-p3": ()}
    labels = {"podrace.scope": "podrace", "podrace.pod": "race-p3"}
    engine.volumes.create("podrace-race-p3", driver="local", driver_opts={}, labels=labels)
    assert [pod.pod_id for pod in await launcher.list()] == ["race-p1"]
    left = {engine.volume_labels[name]["podrace.pod"] for name in engine.volume_options}
    assert left == {"race-p1", "race-p2", "race-p3"}


async def test_containers_of_another_scope_are_ignored(launcher: DockerLauncher, engine: Engine) -> None:
    await launcher.start(new_pod())
    engine.running["podrace-race-p0-learner"].arguments["labels"]["podrace.scope"] = "another"
    for container in engine.running.values():
        container.arguments["labels"]["podrace.scope"] = "another"
    assert await launcher.list() == []
    assert len(engine.running) == 3


async def test_a_failed_start_leaves_no_containers(launcher: DockerLauncher, engine: Engine) -> None:
    engine.failures["podrace-race-p0-evaluator"] = docker.errors.APIError("conflict")
    with pytest.raises(FailedPrecondition, match="the Docker Engine reports an error: conflict"):
        await launcher.start(new_pod())
    assert not engine.running
    assert not engine.volume_options


async def test_stopping_signals_the_leader_and_killing_removes_all_containers(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod())
    await launcher.stop("race-p0", kill=False)
    assert [c.signals for c in engine.running.values()] == [["SIGTERM"], [], []]
    await launcher.stop("race-p0", kill=True)
    assert not engine.running
    await launcher.stop("race-p0", kill=False)


@pytest.mark.parametrize(
    ("kind", "failure", "message"),
    [
        (
            FailedPrecondition,
            docker.errors.ImageNotFound("no such image"),
            "image 'podrace/agentpod:test' does not exist on the engine",
        ),
        (
            FailedPrecondition,
            docker.errors.APIError("could not select device driver"),
            "could not select device driver",
        ),
        (Unavailable, docker.errors.APIError("mkdir /var/lib: no space left on device"), "no space left on device"),
        (
            Unavailable,
            docker.errors.DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))"),
            "this user may not use its socket",
        ),
        (
            Unavailable,
            docker.errors.DockerException("FileNotFoundError(2, 'No such file or directory')"),
            "is it running, and is its socket mounted here",
        ),
    ],
)
async def test_an_error_of_the_engine_becomes_one_line_with_a_remedy(
    launcher: DockerLauncher, engine: Engine, kind: type[PodraceError], failure: Exception, message: str
) -> None:
    engine.failures["podrace-race-p0-learner"] = failure
    with pytest.raises(kind, match=message) as caught:
        await launcher.start(new_pod())
    assert "\n" not in caught.value.message


async def test_pods_that_the_engine_refuses_leave_one_open_connection(
    launcher: DockerLauncher, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Engine] = []
    monkeypatch.setattr(docker, "from_env", lambda **_: opened.append(engine) or engine)
    engine.failures["podrace-race-p0-learner"] = docker.errors.APIError("conflict")
    for _ in range(3):
        with pytest.raises(FailedPrecondition, match="conflict"):
            await launcher.start(new_pod())
    assert len(opened) == 1


async def test_capacity_is_that_of_the_engine_without_the_spare_memory(launcher: DockerLauncher) -> None:
    capacity = await launcher.capacity()
    assert (capacity.total.cores, capacity.total.memory_bytes, capacity.total.gpus) == (8.0, 15 * GIB, 2)


def test_credentials_come_from_the_environment_or_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    found = credentials(
        {"PODRACE_STORE_ACCESS_KEY": "key", "PODRACE_STORE_SECRET_KEY_FILE": str(tmp_path / "secret"), "HOME": "/"}
    )
    assert found == {"PODRACE_STORE_ACCESS_KEY": "key", "PODRACE_STORE_SECRET_KEY": "hush"}
    with pytest.raises(FailedPrecondition, match="PODRACE_STORE_SECRET_KEY_FILE = 'nowhere': cannot be read"):
        credentials({"PODRACE_STORE_SECRET_KEY_FILE": "nowhere"})


def test_the_roles_of_a_pod_match_those_of_agentpod() -> None:
    from agentpod.config import PodConfig

    for layout, name, learners, workers in (
        (LAYOUT_SEPARATE, "separate", 1, 1),
        (LAYOUT_SEPARATE, "separate", 2, 3),
        (LAYOUT_FUSED, "fused", 1, 1),
        (LAYOUT_FUSED, "fused", 4, 1),
    ):
        config = PodConfig("p", "o", "l", "s", Path("f"), layout=name, learners=learners, workers=workers)
        spec = PodSpec(layout=layout, learners=learners, workers=workers)
        assert roles_of(spec) == config.roles
        assert roles_of(spec, isolated=True) == replace(config, isolated=True).roles


async def test_the_learners_of_a_fused_pod_are_processes_of_one_container_with_all_gpus(
    launcher: DockerLauncher, engine: Engine
) -> None:
    await launcher.start(new_pod(layout=LAYOUT_FUSED, learners=2, gpus=2))
    ((name, container),) = engine.running.items()
    assert (name, container.arguments["command"]) == ("podrace-race-p0-learner", ["pod"])
    environ = container.arguments["environment"]
    assert (environ["PODRACE_AGENTPOD__LAYOUT"], environ["PODRACE_AGENTPOD__LEARNERS"]) == ("fused", "2")
    assert environ["PODRACE_AGENTPOD__GPUS"] == "0,1"


async def test_a_pod_runs_the_image_that_its_specification_names(launcher: DockerLauncher, engine: Engine) -> None:
    launcher._options = replace(launcher._options, images=("team/*",))
    await launcher.start(new_pod(image="team/robots:2"))
    assert {each.arguments["image"] for each in engine.running.values()} == {"team/robots:2"}
    await launcher.start(new_pod("race-p1", image="podrace/agentpod:test"))
    with pytest.raises(InvalidArgument, match=r"^pod\.image = 'other/robots:2': .*launchers\.docker\.images"):
        await launcher.start(new_pod("race-p2", image="other/robots:2"))


async def test_a_named_image_that_is_not_on_the_engine_is_reported_with_its_key(
    launcher: DockerLauncher, engine: Engine
) -> None:
    launcher._options = replace(launcher._options, images=("team/*",))
    engine.failures["image team/robots:2"] = docker.errors.ImageNotFound("no such image")
    expected = r"^pod\.image = 'team/robots:2': does not exist on the engine, and is never"
    with pytest.raises(FailedPrecondition, match=expected):
        await launcher.start(new_pod(image="team/robots:2"))
    assert not engine.running
    assert not engine.volume_options
    await launcher.start(new_pod())


async def test_an_old_leader_changes_no_container_and_no_volume(launcher: DockerLauncher, engine: Engine) -> None:
    """The volume of a pod that another replica is starting has no container yet."""
    await launcher.start(new_pod())
    await launcher.start(new_pod("race-p1"))
    engine.running["podrace-race-p1-learner"].status = "exited"
    labels = {"podrace.scope": "podrace", "podrace.pod": "race-p2"}
    engine.volumes.create("podrace-race-p2", driver="local", driver_opts={}, labels=labels)

    def refuse() -> None:
        raise Unavailable("another replica leads")

    launcher._pod_environment = replace(launcher._pod_environment, check_leads=refuse)
    before = list(engine.running), list(engine.volume_options)
    calls = (
        launcher.list(),
        launcher.start(new_pod("race-p3")),
        launcher.stop("race-p0", kill=False),
        launcher.stop("race-p0", kill=True),
    )
    for call in calls:
        with pytest.raises(Unavailable, match="another replica leads"):
            await call
    del engine.running["podrace-race-p1-learner"], engine.running["podrace-race-p1-worker-0"]
    del engine.running["podrace-race-p1-evaluator"]
    with pytest.raises(Unavailable, match="another replica leads"):
        await launcher.list()
    assert list(engine.volume_options) == before[1]
    assert [name for name in before[0] if "race-p1" not in name] == list(engine.running)
    assert not any(container.signals for container in engine.running.values())


@pytest.mark.parametrize(("kill", "passed"), [(False, 0), (True, 0), (True, 1), (True, 2), (True, 3)])
async def test_a_leader_that_is_stopped_within_a_stop_removes_nothing_of_a_later_pod_of_that_id(
    launcher: DockerLauncher, engine: Engine, kill: bool, passed: int
) -> None:
    """Another replica leads and starts the pod again, between a check that succeeds and the call after it."""
    await launcher.start(new_pod())
    successor = DockerLauncher(launcher._pod_environment, launcher._options, environ={})
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > passed + 1:
            raise Unavailable("another replica leads")
        if checks == passed + 1:
            engine.running.clear()
            engine.volume_options.clear()
            asyncio.run(successor.start(new_pod()))

    launcher._pod_environment = replace(launcher._pod_environment, check_leads=check)
    with suppress(Unavailable):
        await launcher.stop("race-p0", kill=kill)
    assert checks > passed
    assert list(engine.running) == [f"podrace-race-p0-{role}" for role in ("learner", "worker-0", "evaluator")]
    assert len(engine.volume_options) == 1
    assert not any(container.signals for container in engine.running.values())
