"""One pod on two hosts, each with its own network, like the pods of an Indexed Job."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from scripted import until
from test_learners import learner_state

from agentpod.config import PodConfig
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

REPOSITORY = Path(__file__).parents[3]
PORT = 50070


@dataclasses.dataclass(frozen=True)
class Network:
    """Addresses of the hosts, and the command prefix that runs a command on each."""

    addresses: tuple[str, str]
    prefixes: tuple[Sequence[str], Sequence[str]]
    port: int


@pytest.fixture
def namespaces() -> Iterator[Network]:
    """Two network namespaces that reach each other over one virtual wire and nothing else."""
    names = [f"podrace-{os.getpid()}-{index}" for index in range(2)]
    addresses = ("10.213.7.1", "10.213.7.2")
    made = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("this machine makes no network namespaces (ip netns add)")
            made.append(name)
        configure = [f"link add wire netns {names[0]} type veth peer name wire netns {names[1]}"]
        for name, address in zip(names, addresses, strict=True):
            configure += [f"-n {name} addr add {address}/24 dev wire", f"-n {name} link set wire up"]
            configure += [f"-n {name} link set lo up"]
        for arguments in configure:
            subprocess.run(["ip", *arguments.split()], check=True)
        first, second = (["ip", "netns", "exec", name] for name in names)
        yield Network(addresses, (first, second), PORT)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture
def loopback() -> Network:
    """Two addresses of this machine."""
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    return Network(("127.0.0.2", "127.0.0.3"), ((), ()), port)


Hosts = list[dict[str, subprocess.Popen[bytes]]]
Start = Callable[..., Hosts]


@pytest.fixture
async def start(mesh) -> AsyncIterator[Start]:
    """Starts every role of a pod; each host has its own folders."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(network: Network, **changes) -> Hosts:
        return [_start_host(mesh, network, index, running, changes) for index in range(2)]

    yield begin
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(lambda: [process.wait() for process in running])


def _start_host(mesh, network: Network, index: int, running: list[subprocess.Popen[bytes]], changes: dict):
    folder = mesh.folder / f"host-{index}"
    config: PodConfig = mesh.pod_config(
        "separate",
        **{
            "learners": 2,
            "hosts": 2,
            "host_index": index,
            "host": network.addresses[index],
            "head": f"{network.addresses[0]}:{network.port}",
            "key": "the key of this pod",
            "unprotected_collectives": True,
            "insecure": True,
            "folder": folder / "pod",
            "plane_folder": folder / "memory",
            **changes,
        },
    )
    for made in (config.folder, config.plane_folder):
        made.mkdir(parents=True, mode=0o700)
    names = (
        "pod_id",
        "orchestrator",
        "leaderboard",
        "store",
        "folder",
        "plane_folder",
        "layout",
        "workers",
        "learners",
    )
    names += ("hosts", "host_index", "host", "head", "key", "unprotected_collectives", "insecure", "orphan_seconds")
    environment = {f"PODRACE_AGENTPOD__{name.upper()}": str(getattr(config, name)) for name in names}
    roles = {}
    for role in config.roles:
        process = subprocess.Popen(
            [*network.prefixes[index], sys.executable, "-m", "agentpod", role],
            cwd=REPOSITORY,
            env={**os.environ, **environment, "PODRACE_AGENTPOD__TELEMETRY__LOG_LEVEL": "warning"},
            start_new_session=True,
        )
        running.append(process)
        roles[role] = process
    return roles


def exit_codes(hosts: Hosts) -> list[dict[str, int | None]]:
    return [{role: process.poll() for role, process in host.items()} for host in hosts]


def all_ended(hosts: Hosts) -> bool:
    return all(code is not None for codes in exit_codes(hosts) for code in codes.values())


def files_left(mesh) -> list[str]:
    return [str(path) for path in mesh.folder.glob("host-*/memory/*")]


@pytest.mark.parametrize("mode", ["average", "allreduce"])
async def test_learners_on_two_hosts_train_one_agent(mesh, make_spec, make_assignment, namespaces, start, mode):
    spec = make_spec(steps=10_000, fusion={"mode": mode, "every_updates": 4})
    mesh.orchestrator.assignments.append(make_assignment(spec))
    hosts = start(namespaces)
    assert [set(host) for host in hosts] == [{"learner", "worker-0", "evaluator"}] * 2
    await until(lambda: bool(mesh.orchestrator.completed), 120)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_FINISHED
    last, state = learner_state(mesh)
    assert 10_000 <= last.environment_steps < 10_000 + 2 * 4 * 512
    # The normalizer has seen the samples of both hosts, and the leader did not make all updates.
    assert int(state["observations.common.count"]) == last.environment_steps
    assert last.policy_version * 512 < last.environment_steps
    # Every process exits with 0, or the Indexed Job would not complete.
    await until(lambda: all_ended(hosts), 60)
    assert {code for codes in exit_codes(hosts) for code in codes.values()} == {0}
    assert not files_left(mesh)


async def test_a_lost_host_is_detected_at_once_and_the_training_continues(
    mesh, make_spec, make_assignment, loopback, start
):
    spec = make_spec(
        steps=10**9,
        fusion={"mode": "average", "every_updates": 2},
        evaluation={"episodes": 4, "every_environment_steps": 4096, "share": 1.0},
    )
    mesh.orchestrator.assignments.append(make_assignment(spec))
    hosts = start(loopback)
    await until(lambda: len(mesh.leaderboard.manifests) >= 2, 120)
    for process in hosts[1].values():
        os.killpg(process.pid, signal.SIGKILL)
    scored = len(mesh.leaderboard.manifests)
    # Within less than the 30 s that the leader waits for a straggler.
    await until(lambda: len(mesh.leaderboard.manifests) >= scored + 2, 25)
    mesh.orchestrator.directive = pb.DIRECTIVE_DRAIN
    await until(lambda: all_ended(hosts), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED
    assert set(exit_codes(hosts)[0].values()) == {0}


async def test_a_host_exits_when_the_leader_on_another_host_is_lost(mesh, make_spec, make_assignment, loopback, start):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(steps=10**9)))
    hosts = start(loopback, orphan_seconds=2.0)
    # Environment steps are reported once both learners take part.
    await until(lambda: any(each.progress.environment_steps for each in mesh.orchestrator.renewals), 120)
    for process in hosts[0].values():
        os.killpg(process.pid, signal.SIGKILL)
    await until(lambda: all_ended(hosts), 60)
    assert exit_codes(hosts)[1]["learner"] == 1
    assert not [path for path in files_left(mesh) if "host-1" in path]


async def test_the_pod_is_replaced_if_a_follower_on_another_host_hangs(
    mesh, make_spec, make_assignment, loopback, start, monkeypatch
):
    # The signal must reach the process that trains.
    monkeypatch.setenv("TESTS_COLD_ROLES", "learner")
    mesh.orchestrator.assignments.append(make_assignment(make_spec(steps=10**9)))
    hosts = start(loopback, orphan_seconds=2.0)
    # The leader has shown its roles often enough to know how often the follower answers.
    await until(lambda: sum(_shows(each, "learner-1") for each in mesh.orchestrator.renewals) >= 5, 120)
    os.kill(hosts[1]["learner"].pid, signal.SIGSTOP)
    # A call may be in progress for ten seconds, and is judged ten seconds later.
    await until(lambda: bool(mesh.orchestrator.completed), 60)
    assert mesh.orchestrator.completed[0].outcome == pb.OUTCOME_DRAINED
    stuck = next(stuck for renewal in mesh.orchestrator.renewals for stuck in renewal.stuck_roles)
    assert (stuck.progress.role, stuck.restarted) == ("learner-1", False)
    assert stuck.reason.startswith("it does not answer")
    await until(lambda: hosts[0]["learner"].poll() is not None, 60)


def _shows(renewal, role: str) -> bool:
    return any(each.role == role for each in renewal.progress.roles)
