"""Two replicas of each service with PostgreSQL in containers: one takes over from a leader that is lost.

Needs what test_compose.py needs, and its images. Run by `make test-compose`; prints a JSON line for each takeover.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from chaos_target import cut
from compose_stack import FILES, Stack, environment_of, running

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
READY_SECONDS, TAKEOVER_SECONDS, TRAINING_SECONDS = 1.0, 60.0, 180.0
CUT_SECONDS, TAKEOVER_LIMIT_SECONDS = 30.0, 15.0
PORTS = {"orchestrator": 50051, "leaderboard": 50052}
SPEC = {
    "name": "replicas",
    "environment": {"id": "cartpole", "count": 8},
    "algorithms": {"ppo": {"hyperparameters": {"horizon": 64, "minibatch_size": 128, "hidden_sizes": [16]}}},
    "evaluation": {"episodes": 8, "every_environment_steps": 20_000},
    "pool": {"minimum_pods": 1, "maximum_pods": 1},
    "pod": {"layout": "fused", "cores": 1.0},
    "objective": {"target_return": 501.0, "wall_clock_duration": "20m"},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        pytest.skip("no Docker Engine answers: set DOCKER_HOST, or start one")
    project, folder = f"podrace-replicas-{os.getpid()}", tmp_path_factory.mktemp("stack")
    (folder / "password").write_text("test-database-password")
    (folder / "password").chmod(0o644)
    environment = environment_of(project, folder, ()) | {
        "PODRACE_DATABASE": "postgresql://podrace@postgresql:5432/postgres",
        "PODRACE_DATABASE_PASSWORD_PATH": str(folder / "password"),
    }
    files = (*FILES, "deploy/compose/compose.postgresql.yaml", "tests/engine/compose.replicas.yaml")
    made = Stack(project, environment, files=files)
    made.compose("build", "postgresql")
    with running(made, "orchestrator"):
        yield made


def leader(stack: Stack, service: str) -> tuple[str, str]:
    """Returns the container and the address of the replica that answers."""
    give_up = time.monotonic() + TAKEOVER_SECONDS
    while time.monotonic() < give_up:
        for line in stack.compose("ps", "--format", "json", service).splitlines():
            replica = json.loads(line)
            for port in replica["Publishers"] or ():
                address = f"{port['URL']}:{port['PublishedPort']}"
                if port["TargetPort"] == PORTS[service] and port["PublishedPort"] and ready(stack, address):
                    return str(replica["ID"]), address
    raise AssertionError(f"no replica of {service} answered within {TAKEOVER_SECONDS:g} s")


def ready(stack: Stack, address: str) -> bool:
    with grpc.secure_channel(address, stack.credentials) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=READY_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True


def is_running(stack: Stack, container: str) -> bool:
    return stack.run("inspect", "--format", "{{.State.Running}}", container).strip() == "true"


def call(stack: Stack, method: str, request: object) -> object:
    with grpc.secure_channel(leader(stack, "orchestrator")[1], stack.credentials) as channel:
        return getattr(pb_grpc.OrchestratorServiceStub(channel), method)(request, timeout=10.0)


def steps(stack: Stack, name: str) -> int:
    found = call(stack, "GetTournament", pb.GetTournamentRequest(tournament_id=name))
    return int(found.tournament.environment_steps)  # type: ignore[attr-defined]


def until_more_steps(stack: Stack, name: str, before: int) -> None:
    give_up = time.monotonic() + TRAINING_SECONDS
    while steps(stack, name) <= before:
        assert time.monotonic() < give_up, f"no more steps than {before} within {TRAINING_SECONDS:g} s"
        time.sleep(0.5)


@contextmanager
def training(stack: Stack, key: str) -> Iterator[str]:
    """Lets one pod train while the block runs; it must outlive what happens to the leaders, and no agent may fail."""
    spec = parse(SPEC, source="test")
    created = call(stack, "CreateTournament", pb.CreateTournamentRequest(request_id=key, spec=spec))
    name = created.tournament.tournament_id  # type: ignore[attr-defined]
    until_more_steps(stack, name, 0)
    pods = stack.containers(role="learner")
    yield name
    assert stack.containers(role="learner") == pods, "its pod did not outlive the leaders"
    events = call(stack, "ListEvents", pb.ListEventsRequest(tournament_id=name, page_size=1000)).events  # type: ignore[attr-defined]
    assert not {event.kind for event in events} & {"pod_died", "pod_killed", "tournament_failed"}
    end = pb.CancelTournamentRequest(request_id=f"{key}-end", tournament_id=name, reason="the end")
    call(stack, "CancelTournament", end)
    stack.until(lambda: not stack.containers() and not stack.volumes(), "the pod to be removed")


def report(capfd: pytest.CaptureFixture[str], case: str, seconds: float) -> None:
    line = {"benchmark": "takeover", "case": f"compose {case}", "value": round(seconds, 1), "unit": "s"}
    with capfd.disabled():
        print(json.dumps(line), flush=True)


def test_the_other_replica_takes_over_from_a_leader_that_was_killed_while_the_pod_trains(
    stack: Stack, capfd: pytest.CaptureFixture[str]
) -> None:
    with training(stack, "killed") as name:
        for service in PORTS:
            killed, _ = leader(stack, service)
            begin = time.monotonic()
            # The engine does not restart what it has killed itself: the killed replica may lead again as soon as the
            # other.
            stack.run("kill", killed)
            successor, _ = leader(stack, service)
            report(capfd, service, time.monotonic() - begin)
            assert successor != killed
            until_more_steps(stack, name, steps(stack, name))
            stack.run("start", killed)


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nsenter") or not shutil.which("iptables"),
    reason="packet filters in the network of a container need root, nsenter and iptables",
)
def test_the_other_replica_takes_over_from_a_leader_whose_network_is_cut_while_the_pod_trains(
    stack: Stack, capfd: pytest.CaptureFixture[str]
) -> None:
    """No packet of the leader arrives any more, not even the end of its connections, as if its machine were lost.

    PostgreSQL and the callers keep connections without a peer: the time limit of idle transactions ends those of the
    leader, and keepalive those of the callers. The former leader stops by itself, and is not started again.
    """
    with training(stack, "cut") as name, ThreadPoolExecutor(1) as pool:
        for service in PORTS:
            former, _ = leader(stack, service)
            stack.run("update", "--restart", "no", former)
            begin = time.monotonic()
            cutting = pool.submit(cut, stack.pid(former), CUT_SECONDS)
            while leader(stack, service)[0] == former:
                assert not cutting.done(), "the network could not be cut, or the leader answers without it"
            seconds = time.monotonic() - begin
            report(capfd, f"{service}, network cut", seconds)
            assert seconds < TAKEOVER_LIMIT_SECONDS
            until_more_steps(stack, name, steps(stack, name))
            cutting.result()
            stack.until(lambda ended=former: not is_running(stack, ended), "the former leader to stop by itself")
            stack.run("update", "--restart", "unless-stopped", former)
            stack.run("start", former)
