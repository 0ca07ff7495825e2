"""`python -m podrace.serving`, run in this process: how it starts, what it limits, and how it ends."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from policy_world import act, model, name, observation

from podrace import rpc, telemetry
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.service_access import AccessConfig
from podrace.access.tokens import claims_of
from podrace.config import build
from podrace.errors import ResourceExhausted
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc
from podrace.serving.__main__ import serve
from podrace.serving.config import ServingConfig
from podrace.serving.engine import PolicyEngine
from podrace.tasks import cancel_all

SECONDS = 30.0
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
Start = Callable[..., Any]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setattr(telemetry, "start", lambda config, service: "")

    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[tuple["asyncio.Task[None]", dict[str, str]]]:
        addresses = {key: f"127.0.0.1:{free_port()}" for key in ("grpc", "health", "rest")}
        given = {
            "server": {"listen": addresses["grpc"], "health_listen": addresses["health"], "grace_seconds": 0.0},
            "rest_listen": addresses["rest"],
            "access": {"token_file": str(tmp_path / "token")} | settings.pop("access", {}),
            **settings,
        }
        running = asyncio.create_task(serve(build(ServingConfig, given, source="test")))
        try:
            yield running, addresses
        finally:
            await cancel_all(running)

    return started


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "policy.onnx").write_bytes(model(1, "recurrent"))
    return str(tmp_path / "exported")


async def health_of(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        check = health_pb2_grpc.HealthStub(channel).Check
        return int((await check(request, wait_for_ready=True, timeout=SECONDS)).status)


async def over_http(address: str, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status


async def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns the line that the server prints after its first poll."""
    lines: list[str] = []
    async with asyncio.timeout(SECONDS):
        # The log is on this stream as well.
        while not (found := [line for line in lines if line.startswith("{")]):
            await asyncio.sleep(0.01)
            lines += capsys.readouterr().out.splitlines()
    return json.loads(found[0])


async def test_a_server_whose_mesh_is_down_is_alive_and_not_ready(start: Start) -> None:
    async with start(orchestrator=f"127.0.0.1:{free_port()}", tournament="race-1") as (running, addresses):
        assert await health_of(addresses["health"], rpc.LIVENESS) == SERVING
        assert await health_of(addresses["health"]) == NOT_SERVING
        assert await over_http(addresses["rest"], "/v2/health/live") == 200
        assert await over_http(addresses["rest"], "/v2/health/ready") == 503
        assert not running.done()


async def test_a_server_reports_what_it_serves_when_it_is_ready(
    start: Start, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start(folder=folder) as (_, addresses):
        facts = await printed(capsys)
        assert (facts["version"], facts["grpc"], facts["rest"]) == (name(1), addresses["grpc"], addresses["rest"])
        assert await health_of(addresses["health"]) == SERVING
        assert await over_http(addresses["rest"], "/v2/health/ready") == 200


async def test_a_server_that_can_follow_its_source_no_longer_ends(
    start: Start, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(engine: PolicyEngine) -> None:
        raise ValueError("a defect")

    async with start(folder=folder, poll_seconds=0.01) as (running, addresses):
        await printed(capsys)
        monkeypatch.setattr(PolicyEngine, "tidy", broken)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(ValueError, match="a defect"):
                await running
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*addresses["grpc"].split(":"))


@asynccontextmanager
async def caller_of(address: str, mesh_key: Path) -> AsyncIterator[Any]:
    """A client of a viewer with a token of the mesh."""
    claims = claims_of("alice", {ROLES_BY_NAME["viewer"]}, expire_time=time.time() + 600.0)
    token = MeshKey.load_or_make(mesh_key).sign(claims)
    async with rpc.connect(address, pb.DESCRIPTOR, token=lambda: token) as channel:
        yield pb_grpc.PolicyServiceStub(channel)


async def test_one_caller_makes_a_limited_number_of_calls(
    start: Start, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A burst of one call, and then none for a long time.
    async with start(folder=folder, access={"owner_calls_per_second": {"alice": 0.001}}) as (_, addresses):
        await printed(capsys)
        async with caller_of(addresses["grpc"], tmp_path / "mesh.key") as alice:
            await rpc.call(alice.GetServing, pb.GetServingRequest(), deadline_seconds=SECONDS)
            with pytest.raises(ResourceExhausted, match=r"access\.owner_calls_per_second\.alice = 0\.001"):
                await rpc.call(alice.GetServing, pb.GetServingRequest(), deadline_seconds=SECONDS)


async def test_one_caller_has_a_limited_number_of_sessions(
    start: Start, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start(folder=folder, limits={"sessions": {"maximum_of_owner": 2}}) as (_, addresses):
        await printed(capsys)
        async with caller_of(addresses["grpc"], tmp_path / "mesh.key") as alice:
            for session in ("s1", "s2", "s1"):
                assert (await act(alice, observation(), session_id=session, begin=True)).actions
            with pytest.raises(ResourceExhausted, match="alice has 2 sessions"):
                await act(alice, observation(), session_id="s3", begin=True)


def test_a_policy_server_answers_more_calls_of_one_caller_than_other_services() -> None:
    default, other = build(ServingConfig, {"access": {"audit_log_files": 1}}, source="test").access, AccessConfig()
    assert default.calls_per_second == 1000.0 > other.calls_per_second
