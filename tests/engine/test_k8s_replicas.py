"""Tests the component `postgresql` on a real cluster: another replica leads soon after the leader was deleted.

Needs what test_k8s.py needs, and a node that is this machine: its pods find Services by names that this test answers,
because the cluster has no DNS. Run by `make test-k8s`; prints a JSON line for each takeover.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cluster_names import answering, cached
from k8s_mesh import SMALL, Mesh, deployed, grown, until
from k8s_replicas import suffix_of, write_replicas_overlay

from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
]
PORTS = {"orchestrator": 50051, "leaderboard": 50052}
READY_SECONDS, TAKEOVER_LIMIT_SECONDS = 1.0, 15.0
ENDLESS = {
    "objective__target_return": 501.0,
    "objective__wall_clock_duration": "20m",
    "assignment__environment_steps": 10**9,
    "evaluation__every_environment_steps": 50_000,
    "evolution__strategy": "tournament",
}


@dataclass(frozen=True)
class Replica:
    """A pod of a service."""

    name: str
    """Its successor in the StatefulSet has the same one."""
    uid: str
    address: str
    """Of its port for calls."""


@dataclass
class Replicas(Mesh):
    """The mesh with two replicas of each service; calls go to the orchestrator that leads."""

    certificates: Path = Path()
    """Folder of `make_certificates`."""

    def leader(self, service: str) -> Replica | None:
        """Returns the pod that leads; None if none does."""
        labels = f"app.kubernetes.io/component={service}"
        for pod in json.loads(self.kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]:
            address, metadata = f"{pod['status'].get('podIP')}:{PORTS[service]}", pod["metadata"]
            if pod["status"].get("podIP") and "deletionTimestamp" not in metadata and self._answers(address):
                return Replica(metadata["name"], metadata["uid"], address)
        return None

    def successor(self, service: str, of: Replica) -> Replica | None:
        """Returns the pod that leads if it is another one, even if it has the same name; None if there is none."""
        found = self.leader(service)
        return found if found and found.uid != of.uid else None

    def _answers(self, address: str) -> bool:
        with self._channel(address) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=READY_SECONDS)
            except grpc.FutureTimeoutError:
                return False
        return True

    def _channel(self, address: str) -> grpc.Channel:
        folder = self.certificates / "operator/operator"
        files = [(folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
        # Certificates are not for the addresses of pods.
        options = (("grpc.ssl_target_name_override", "localhost"),)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options)

    async def call(self, method: str, request: Any) -> Any:
        return await asyncio.to_thread(self._call, method, request)

    def _call(self, method: str, request: Any) -> Any:
        give_up = time.monotonic() + 60.0
        while True:
            leader = self.leader("orchestrator")
            try:
                assert leader, "no orchestrator leads"
                with self._channel(leader.address) as channel:
                    return getattr(pb_grpc.OrchestratorServiceStub(channel), method)(request, timeout=10.0)
            except (grpc.RpcError, AssertionError):
                if time.monotonic() > give_up:
                    raise


@pytest.fixture(scope="module")
def replicated(
    tmp_path_factory: pytest.TempPathFactory, cluster: None, certificates: Path, data: Path
) -> Iterator[Replicas]:
    name = f"podrace-replicas-{os.getpid()}"
    made = Replicas(name, None, data / "reports", certificates)
    (node,) = json.loads(made.kubectl("get", "nodes", "-o", "json"))["items"]
    address = next(one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP")
    overlay = write_replicas_overlay(tmp_path_factory.mktemp("replicas"), name, data / "replicas", address)
    with answering(address, suffix_of(name), cached(made.kubectl)), deployed(name, overlay, certificates):
        yield made


@pytest.fixture
async def mesh(replicated: Replicas) -> AsyncIterator[Replicas]:
    yield replicated
    await replicated.cancel_all()
    await until(lambda: not replicated.names("jobs", "podrace/scope=podrace"), "the Jobs to be gone")


async def test_another_process_leads_within_15_s_after_the_leader_was_deleted_and_the_pod_trains_on(
    mesh: Replicas, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kubelet ends the process of a deleted pod with SIGTERM: test_compose_replicas.py kills leaders."""
    tournament = await mesh.create(pool__minimum_pods=1, pool__maximum_pods=1, **SMALL, **ENDLESS)
    await until(lambda: mesh.steps(tournament), "steps")
    pods = mesh.running()
    for service in PORTS:
        deleted = mesh.leader(service)
        assert deleted, f"no {service} leads"
        seen = await mesh.steps(tournament)
        begin = time.monotonic()
        mesh.kubectl("delete", "pod", deleted.name, "--grace-period=0", "--force", "--wait=false")
        await until(partial(mesh.successor, service, deleted), f"another leader of {service}")
        seconds = time.monotonic() - begin
        line = {"benchmark": "takeover", "case": f"kubernetes {service}", "value": round(seconds, 1), "unit": "s"}
        with capfd.disabled():
            print(json.dumps(line), flush=True)
        assert seconds < TAKEOVER_LIMIT_SECONDS
        await until(lambda least=seen: grown(mesh, tournament, least), "training to continue")  # type: ignore[misc]
        mesh.kubectl("rollout", "status", f"statefulset/podrace-{service}", "--timeout=120s")
    assert mesh.running() == pods, "its pod did not outlive the leaders"
    for kind in ("pod_died", "pod_killed", "tournament_failed"):
        assert not await mesh.events(tournament, kind)


async def test_a_rolling_restart_of_both_services_fails_no_tournament(mesh: Replicas) -> None:
    tournament = await mesh.create(pool__minimum_pods=1, pool__maximum_pods=1, **SMALL, **ENDLESS)
    await until(lambda: mesh.steps(tournament), "steps")
    pods = mesh.running()
    for service in PORTS:
        mesh.kubectl("rollout", "restart", f"statefulset/podrace-{service}")
        mesh.kubectl("rollout", "status", f"statefulset/podrace-{service}", "--timeout=180s")
    seen = await mesh.steps(tournament)
    await until(lambda: grown(mesh, tournament, seen), "training to continue")
    assert mesh.running() == pods
    for kind in ("pod_died", "pod_killed", "tournament_failed"):
        assert not await mesh.events(tournament, kind)
