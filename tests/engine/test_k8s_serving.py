"""Tests a policy server, and the Job that examines GPUs, on a real cluster. Needs what test_k8s.py needs."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import served_policy
from k8s_mesh import (
    ADDRESSES,
    COMPLETED,
    KUBECTL,
    PODRACE,
    SMALL,
    Mesh,
    qualify_job,
    until,
    write_serving_overlay,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
SERVING = "app.kubernetes.io/component=serving"


async def test_the_champion_is_served_and_a_rolling_restart_fails_no_call(
    mesh: Mesh, certificates: Path, tmp_path: Path
) -> None:
    tournament = await mesh.create(objective__target_return=200.0, pool__maximum_pods=1, **SMALL)

    async def ended() -> bool:
        return (await mesh.get(tournament)).state == COMPLETED

    await until(ended, "the end", seconds=300.0)
    write_serving_overlay(tmp_path, mesh.namespace, tournament)
    mesh.kubectl("apply", "-k", str(tmp_path))
    try:
        mesh.kubectl("rollout", "status", "deployment/podrace-serving", "--timeout=120s")
        served = served_policy_of(certificates)
        await until(lambda: asyncio.to_thread(served.reached), "the addresses of the service")
        await asyncio.to_thread(served_policy.check, served, 100.0)
        (pod,) = json.loads(mesh.kubectl("get", "pods", "-l", SERVING, "-o", "json"))["items"]
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001

        mesh.kubectl("rollout", "restart", "deployment/podrace-serving")
        restarted = asyncio.create_task(
            asyncio.to_thread(mesh.kubectl, "rollout", "status", "deployment/podrace-serving", "--timeout=120s")
        )
        calls = 0
        while not restarted.done():
            calls += len(await asyncio.to_thread(served.actions, served_policy.observations(), by_token=False))
        await restarted
        assert calls > 0
        await until(lambda: len(mesh.names("pods", SERVING)) == 1, "the replaced pod to be gone")
        assert mesh.names("pods", SERVING) != [pod["metadata"]["name"]]
    finally:
        mesh.kubectl("delete", "--ignore-not-found", "-k", str(tmp_path))


def served_policy_of(certificates: Path) -> served_policy.ServedPolicy:
    make = ("token", "caller", "--role", "viewer", "--key", str(certificates / "orchestrator/mesh.key"), "--json")
    token = json.loads(subprocess.run([PODRACE, *make], capture_output=True, check=True).stdout)["token"]
    folder = certificates / "operator/operator"
    authority, key, certificate = ((folder / file).read_bytes() for file in ("ca.crt", "tls.key", "tls.crt"))
    operator = grpc.ssl_channel_credentials(authority, key, certificate)
    addresses = (f"{ADDRESSES['policy-server']}:{port}" for port in (8001, 8003, 8000))
    return served_policy.ServedPolicy(*addresses, authority, operator, token)


async def test_the_job_that_examines_gpus_fails_on_a_node_without_one(mesh: Mesh) -> None:
    """Every line of the report is there, none passes, and the exit code is 1."""
    job = json.dumps(qualify_job("quick=true", "parts=machine,planes"))
    subprocess.run([KUBECTL, "-n", mesh.namespace, "apply", "-f", "-"], input=job, text=True, check=True)
    try:

        def status() -> dict[str, Any]:
            return dict(json.loads(mesh.kubectl("get", "job", "podrace-qualify", "-o", "json")).get("status", {}))

        await until(lambda: status().get("failed") or status().get("succeeded"), "the report", seconds=600.0)
        assert status().get("failed") == 1
        (pod,) = mesh.names("pods", "job-name=podrace-qualify")
        exit_code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        assert mesh.kubectl("get", "pod", pod, "-o", exit_code) == "1"
        report = mesh.kubectl("logs", pod)
        assert "ABSENT" in report
        assert "PASS" not in report
        assert "FAIL" not in report, report
    finally:
        mesh.kubectl("delete", "job", "podrace-qualify")
