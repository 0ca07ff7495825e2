"""Tests the mesh in containers of a real Docker Engine: it trains through S3, survives kills, grows and shrinks.

It must leave nothing behind. Needs `docker compose` and an engine (DOCKER_HOST) on this host; builds the images first.
Run by `make test-compose`.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import container_spy
import grpc
import pytest
import served_policy
import yaml
from compose_stack import REPOSITORY, Stack, environment_of, running

from agentpod.qualification.plane_trials import launched
from agentpod.qualification.plane_trials.cases import CASES, PlaneCase
from podrace import tls
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.qualification.findings import Grade
from podrace.tournament.v1 import tournament_pb2

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
COMPLETED = tournament_pb2.TOURNAMENT_STATE_COMPLETED
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
ENDLESS = {"target_return": 501.0, "wall_clock_duration": "10m"}
"""CartPole's return is at most 500: the tournament runs until a lower target is set."""
SMALL = {"layout": "fused", "cores": 1.0, "memory_bytes": 1 << 30}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        pytest.skip("no Docker Engine answers: set DOCKER_HOST, or start one")
    project, folder = f"podrace-test-{os.getpid()}", tmp_path_factory.mktemp("stack")
    made = Stack(project, environment_of(project, folder, container_spy.FILES), reports=folder / "reports")
    # PODRACE_IMAGES=there: use the images of the last run.
    if os.environ.get("PODRACE_IMAGES") != "there":
        for services in (("leaderboard", "orchestrator", "store", "prometheus"), ("agentpod",), ("serving",)):
            made.compose("build", *services)
    with running(made, "orchestrator", "prometheus"):
        yield made


@pytest.fixture(autouse=True)
def ended_tournaments(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancels what a failed test has left running, so that later tests find no pods of other tournaments."""
    yield
    if "stack" in request.fixturenames:
        request.getfixturevalue("stack").cancel_tournaments()


def no_pods(stack: Stack) -> None:
    stack.until(lambda: not stack.containers() and not stack.volumes(), "the pods to be removed")


def test_two_pods_reach_the_target_although_pod_orchestrator_and_leaderboard_are_killed(stack: Stack) -> None:
    name = stack.create(pods=(2, 2), objective=ENDLESS, **SMALL)
    before = stack.watch(name, lambda seen: len(seen.training()) == 2, "two pods training").training()

    (victim,) = stack.containers(role="learner", pod=min(before))
    stack.kill(victim)
    seen = stack.watch(
        name, lambda seen: "pod_died" in seen.kinds() and len(seen.training()) == 2, "another pod for the dead one"
    )
    assert len(seen.training() - before) == 1
    assert stack.run("ps", "--all", "--quiet", "--filter", f"id={victim}").strip() == "", "it was not removed"

    steps = seen.tournament.environment_steps
    orchestrator = stack.service("orchestrator")
    stack.kill(orchestrator)
    stack.watch(
        name,
        lambda now: now.tournament.environment_steps > steps + 50_000 and now.training() == seen.training(),
        "the same pods continuing after the restart",
    )
    assert stack.service("orchestrator") == orchestrator

    stack.kill(stack.service("leaderboard"))
    stack.update(name, target=475.0)
    ended = stack.watch(name, lambda now: now.tournament.state == COMPLETED, "the end")
    assert ended.tournament.best_score >= 475.0
    assert ended.kinds().count("pod_died") == 1
    no_pods(stack)


def test_a_pool_grows_and_shrinks_by_its_limits_and_loses_nothing(stack: Stack) -> None:
    name = stack.create(pods=(1, 1), objective=ENDLESS, **SMALL)
    stack.watch(name, lambda seen: len(seen.training()) == 1, "one pod training")
    stack.update(name, pods=(3, 3))
    stack.watch(name, lambda seen: len(seen.training()) == 3, "three pods training")
    stack.update(name, pods=(1, 1))
    seen = stack.watch(name, lambda seen: len(seen.pods) == 1 and seen.training(), "one pod, the others gone")
    assert seen.kinds().count("pod_gone") == 2
    assert "pod_died" not in seen.kinds()
    assert seen.kinds().count("agent_drained") >= 1, "no pod returned its agent"
    stack.until(lambda: len(stack.containers()) == 1, "the containers of pods that are gone to be removed")
    stack.update(name, target=100.0)
    stack.watch(name, lambda seen: seen.tournament.state == COMPLETED, "the end")
    no_pods(stack)


def test_two_fused_pods_become_one_separate_pod_of_two_cores(stack: Stack) -> None:
    """The pod of the incumbent gets all cores, whatever is learned."""
    grows = {"maximum_cores": 2.0, "improving_share": 1.0, "stalled_share": 1.0}
    # Without a founder's share, both pods begin with one core.
    evolution = {"strategy": "incumbent", "founder_share": 0.0}
    sections = {"evolution": evolution, "evaluation": {"every_environment_steps": 20_000}}
    name = stack.create(pods=(2, 2), objective=ENDLESS, sections=sections, cores=1.0, memory_bytes=1 << 30, **grows)
    stack.watch(name, lambda seen: len(seen.training()) == 2, "two pods training")
    seen = stack.watch(name, lambda seen: "pod_resized" in seen.kinds(), "the larger pod to take over", 240.0)
    assert not {"pod_died", "pod_killed", "pod_resize_abandoned"} & set(seen.kinds())
    stack.until(lambda: len(stack.containers()) == 3, "the three containers of one pod, and no other")
    assert len(stack.containers(role="worker-0")) == 1
    steps = seen.tournament.environment_steps
    stack.watch(name, lambda now: now.tournament.environment_steps > steps + 50_000, "training to continue")
    stack.update(name, target=100.0)
    stack.watch(name, lambda now: now.tournament.state == COMPLETED, "the end")
    no_pods(stack)


def test_a_killed_worker_of_a_separate_pod_is_restarted(stack: Stack) -> None:
    separate = {"layout": "separate", "cores": 2.0, "memory_bytes": 2 << 30}
    name = stack.create(pods=(1, 1), objective=ENDLESS, **separate)
    stack.watch(name, lambda seen: seen.training(), "a pod training")
    assert len(stack.containers()) == 3
    (worker,) = stack.containers(role="worker-0")
    before = stack.pid(worker)
    stack.kill(worker)
    stack.until(lambda: stack.pid(worker) not in (0, before), "the worker to be started again")
    # The worker may run for less than the collector's period before the tournament ends.
    steps = 'podrace_worker_environment_steps_total{role="worker-0"}'
    stack.until(lambda: bool(stack.query(steps)), "the collector to find the worker")
    stack.update(name, target=100.0)
    seen = stack.watch(name, lambda seen: seen.tournament.state == COMPLETED, "the end")
    assert "pod_died" not in seen.kinds()
    no_pods(stack)


def test_pods_run_in_an_image_that_the_specification_names_if_the_operator_allows_it(
    stack: Stack, tmp_path: Path
) -> None:
    """It is podrace's image with one more module, made as docs/extending.md says."""
    (tmp_path / "own_task.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    (tmp_path / "Dockerfile").write_text("FROM podrace-test/agentpod:latest\nCOPY own_task.py /opt/own/\n")
    image = "podrace-test/own:1"
    stack.run("build", "--tag", image, str(tmp_path))
    environment = {"environment": {"id": "python:own_task:make", "count": 8}}
    with pytest.raises(grpc.RpcError) as refused:
        stack.create(pods=(1, 1), objective=ENDLESS, sections=environment, image="podrace-test/other:1", **SMALL)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith("pod.image = 'podrace-test/other:1': this image is not allowed here")
    try:
        name = stack.create(pods=(1, 1), objective=ENDLESS, sections=environment, image=image, **SMALL)
        stack.watch(name, lambda seen: seen.training(), "a pod training")
        (container,) = stack.containers(role="learner")
        assert stack.run("inspect", "--format", "{{.Config.Image}}", container).strip() == image
        stack.update(name, target=100.0)
        stack.watch(name, lambda seen: seen.tournament.state == COMPLETED, "the end")
        no_pods(stack)
    finally:
        stack.run("rmi", "--force", image)


def test_a_pod_that_is_frozen_is_replaced(stack: Stack) -> None:
    """Its containers run and say nothing: the engine reports nothing, so the orchestrator decides by the lease."""
    name = stack.create(pods=(1, 1), objective=ENDLESS, **SMALL)
    before = stack.watch(name, lambda seen: seen.training(), "a pod training").training()
    (frozen,) = stack.containers(role="learner")
    stack.run("pause", frozen)
    seen = stack.watch(name, lambda seen: seen.training() - before, "another pod training", seconds=120.0)
    assert "pod_killed" in seen.kinds()
    stack.until(lambda: frozen not in stack.run("ps", "--all", "--quiet").split(), "the frozen container to be removed")
    stack.update(name, target=100.0)
    stack.watch(name, lambda seen: seen.tournament.state == COMPLETED, "the end")
    no_pods(stack)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("memory", "shared")], ids=lambda case: case.name
)
async def test_roles_of_a_pod_are_examined_and_killed_through_the_launcher(
    stack: Stack, case: PlaneCase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `podrace qualify --orchestrator` does, with processors in place of GPUs."""
    for variable, file in ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key"), (tls.AUTHORITY, "ca.crt")):
        (tmp_path / file).write_bytes(stack.operator_file(file))
        (tmp_path / file).chmod(0o600)
        monkeypatch.setenv(variable, str(tmp_path / file))
    found = await launched.measure(case, 0, stack.address())
    assert found.launcher == "docker", found
    assert {finding.grade for finding in launched.judge(found)} == {Grade.PASS}, found
    no_pods(stack)


@pytest.mark.parametrize("layout", ["fused", "separate"])
def test_user_code_finds_no_secret_of_its_pod_and_no_way_to_services_and_store(stack: Stack, layout: str) -> None:
    """An environment and an evaluation function, in other containers than the leader."""
    (stack.reports / "found").unlink(missing_ok=True)
    pod = {"layout": layout, "cores": 1.0, "memory_bytes": 2 << 30}
    # Twice the steps of an assignment: the end of the tournament does not interrupt the evaluation of the first agent.
    name = stack.create(pods=(1, 1), objective={"environment_steps": 512}, sections=container_spy.SECTIONS, **pod)
    ended = stack.watch(name, lambda seen: seen.tournament.state in (COMPLETED, FAILED), "the end", seconds=300.0)
    assert ended.tournament.state == COMPLETED, ended.tournament.reason
    container_spy.check([json.loads(line) for line in (stack.reports / "found").read_text().splitlines()])
    no_pods(stack)


def test_the_collector_finds_services_and_pods_without_configuration(stack: Stack) -> None:
    # The tests above have produced the samples, so there is nothing to wait for.
    seen = {labels["job"] for labels, _ in stack.query("max_over_time(up[15m]) == 1")}
    assert seen == {"services", "pods"}
    steps = stack.query("max by (pod_id, role) (max_over_time(podrace_worker_environment_steps_total[15m]))")
    assert len({labels["pod_id"] for labels, _ in steps}) >= 3
    assert {labels["role"] for labels, _ in steps} >= {"learner", "worker-0"}
    assert all(value >= 0 for _, value in steps)
    ((_, best),) = stack.query("max(max_over_time(podrace_orchestrator_best_score[15m]))")
    assert best >= 475.0
    ((_, wanted),) = stack.query("max(max_over_time(podrace_orchestrator_pods_wanted[15m]))")
    assert wanted == 3.0


def test_the_champion_is_served_by_a_hardened_container(stack: Stack) -> None:
    name = stack.create(pods=(1, 1), objective={"target_return": 200.0, "wall_clock_duration": "5m"}, **SMALL)
    ended = stack.watch(name, lambda seen: seen.tournament.state == COMPLETED, "the end", seconds=300.0)
    assert ended.tournament.best_score >= 200.0
    stack.environment["PODRACE_SERVED_TOURNAMENT"] = name
    try:
        stack.compose("up", "--detach", "--wait", "--no-deps", "serving")
        served_policy.check(stack.served(), least_return=100.0)
        check_hardening(json.loads(stack.run("inspect", stack.service("serving")))[0])
        stack.until(lambda: bool(stack.query('podrace_serving_requests_total{job="serving"}')), "its metrics")

        # It serves again after a crash, without help.
        before = stack.pid(stack.service("serving"))
        stack.kill(stack.service("serving"))
        stack.until(lambda: stack.pid(stack.service("serving")) not in (0, before), "the server to be started again")
        stack.compose("up", "--detach", "--wait", "--no-deps", "serving")
        served_policy.check(stack.served(), least_return=100.0)
    finally:
        stack.compose("rm", "--stop", "--force", "serving")


def check_hardening(container: dict[str, Any]) -> None:
    host, config = container["HostConfig"], container["Config"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] == 1 << 30
    assert config["User"] == "10001:10001"
    # Its certificate, and nothing of the host, of the store or of another service.
    mounts = {mount["Destination"]: (mount["Type"], mount["RW"]) for mount in container["Mounts"]}
    assert mounts["/etc/podrace/tls"] == ("volume", False)
    assert {kind for kind, _ in mounts.values()} == {"volume"}
    assert not any("STORE" in variable or "SECRET" in variable for variable in config["Env"])
    assert container["State"]["Health"]["Status"] == "healthy"


def test_the_image_of_pods_examines_a_machine_without_gpus(stack: Stack) -> None:
    """`docker run podrace/agentpod qualify`, hardened: every line is there, none passes, and so the exit code is 1."""
    hardened = ("--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", "--tmpfs", "/tmp", "--shm-size", "2g")
    settings = ("--set", "quick=true", "--set", "parts=machine,planes")
    command = ["docker", "run", *hardened, "podrace-test/agentpod:latest", "qualify", *settings]
    done = subprocess.run(command, env=stack.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stderr[-2000:]
    assert "ABSENT" in done.stdout
    assert "PASS" not in done.stdout
    assert "FAIL" not in done.stdout, done.stdout


def test_queries_of_the_dashboards_are_valid_for_the_collector(stack: Stack) -> None:
    rules = []
    for path in sorted((REPOSITORY / "deploy/compose/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "1m")
                rules.append({"record": f"checked:{path.stem}:{len(rules)}", "expr": expression})
    file = json.dumps({"groups": [{"name": "dashboards", "rules": rules}]})
    output = stack.compose("exec", "-T", "prometheus", "promtool", "check", "rules", "/dev/stdin", stdin=file)
    assert f"{len(rules)} rules found" in output
    loaded = stack.compose("exec", "-T", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yaml")
    assert "1 rule files found" in loaded
    groups = yaml.safe_load((REPOSITORY / "deploy/compose/alerts.yaml").read_text())["groups"]
    assert f"{sum(len(group['rules']) for group in groups)} rules found" in loaded


@pytest.mark.parametrize("profile", ["docker", "fixed"])
def test_the_gpu_file_adds_gpus(stack: Stack, profile: str) -> None:
    folder = REPOSITORY / "deploy/compose"
    files = ("--file", str(folder / "compose.yaml"), "--file", str(folder / "compose.gpu.yaml"))
    config = json.loads(stack.run("compose", *files, "--profile", profile, "config", "--format", "json"))
    if profile == "docker":
        assert config["services"]["orchestrator"]["environment"]["PODRACE_ORCHESTRATOR__LAUNCHERS__DOCKER__GPUS"] == "0"
        return
    (device,) = config["services"]["agentpod"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["device_ids"]) == ("nvidia", ["0"])
    assert set(device["capabilities"]) == {"gpu", "compute", "utility"}


def test_an_image_missing_on_the_engine_fails_the_tournament_with_the_reason(stack: Stack) -> None:
    stack.environment["PODRACE_VERSION"] = "never-built"
    try:
        # Only the orchestrator is recreated, configured with an image of pods that does not exist.
        stack.run("tag", "podrace-test/orchestrator:latest", "podrace-test/orchestrator:never-built")
        stack.compose("up", "--detach", "--wait", "--no-deps", "orchestrator")
        name = stack.create(pods=(1, 1), objective=ENDLESS, **SMALL)
        seen = stack.watch(name, lambda seen: seen.tournament.state == FAILED, "the end")
    finally:
        del stack.environment["PODRACE_VERSION"]
        stack.run("rmi", "--force", "podrace-test/orchestrator:never-built")
    reason = "image 'podrace-test/agentpod:never-built' does not exist on the engine"
    reason = f"{reason}: build or pull it, or set docker.image"
    assert seen.tournament.reason.startswith(reason)
    shown = stack.compose("run", "--rm", "--no-deps", "command", "show", name, "--orchestrator", "orchestrator:50051")
    assert "does not exist on the engine" in " ".join(shown.split())


def test_a_fixed_pool_without_the_socket_is_scaled_by_hand(stack: Stack) -> None:
    stack.compose("rm", "--stop", "--force", "orchestrator")
    stack.profile, stack.orchestrator = "fixed", "orchestrator-fixed"

    def scale(pods: int) -> None:
        services = ("orchestrator-fixed", "agentpod", "prometheus")
        stack.compose("up", "--detach", "--wait", "--scale", f"agentpod={pods}", *services)

    scale(1)
    assert (
        stack.run("inspect", "--format", "{{.Mounts}}", stack.service("orchestrator-fixed")).count("docker.sock") == 0
    )
    name = stack.create(pods=(1, 3), objective=ENDLESS)
    stack.watch(name, lambda seen: len(seen.training()) == 1, "the pod training")
    scale(3)
    seen = stack.watch(name, lambda seen: len(seen.training()) == 3, "three pods training")
    hosts = {pod.pod_id for pod in seen.pods}
    assert all(container.startswith(tuple(hosts)) for container in stack.service("agentpod").split())
    scale(1)
    seen = stack.watch(name, lambda seen: len(seen.pods) == 1, "the removed pods to be gone")
    assert "pod_died" not in seen.kinds()
    returned = [event for event in seen.events if event.kind == "agent_drained"]
    assert len({event.pod_id for event in returned}) == 2, "a stopped pod did not return its agent"
    stack.update(name, target=475.0)
    stack.watch(name, lambda seen: seen.tournament.state == COMPLETED, "the end")

    # The same pod takes part in the next tournament without a restart.
    later = stack.create(pods=(1, 1), objective=ENDLESS)
    seen = stack.watch(later, lambda seen: seen.training(), "the pod training for another tournament")
    assert seen.training() <= hosts
    stack.call(
        "CancelTournament", pb.CancelTournamentRequest(request_id="enough", tournament_id=later, reason="enough")
    )
