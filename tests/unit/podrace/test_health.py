"""Tests the exit code of the health check for container engines."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from podrace import health

STATUS = health_pb2.HealthCheckResponse


class ScriptedHealth(health_pb2_grpc.HealthServicer):
    """Reports the given statuses in order, then always the last; None is an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def Check(self, request: Any, context: Any) -> Any:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return STATUS(status=answer)


@pytest.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    made = grpc.aio.server()
    yield made
    await made.stop(None)


async def serve(server: grpc.aio.Server, servicer: ScriptedHealth) -> str:
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("before", [(), (None, STATUS.NOT_SERVING, STATUS.SERVICE_UNKNOWN)])
async def test_the_check_succeeds_as_soon_as_the_service_reports_serving(
    server: grpc.aio.Server, before: tuple[Any, ...]
) -> None:
    servicer = ScriptedHealth(*before, STATUS.SERVING)
    address = await serve(server, servicer)
    assert await asyncio.to_thread(health.main, [address]) == 0
    assert servicer.calls == len(before) + 1


async def test_the_check_fails_if_the_service_does_not_report_serving_in_time(
    server: grpc.aio.Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "DEADLINE_SECONDS", 0.2)
    address = await serve(server, ScriptedHealth(STATUS.NOT_SERVING))
    assert await asyncio.to_thread(health.main, [address]) == 1
    assert capsys.readouterr().err == (
        f"error: the service at {address} runs and is not ready: its log says what it waits for (waited 0.2 s)\n"
    )


def test_the_check_fails_at_an_address_without_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "DEADLINE_SECONDS", 0.2)
    assert health.main([f"unix:{tmp_path / 's'}"]) == 1
    assert capsys.readouterr().err == f"error: nothing answers at unix:{tmp_path / 's'} (waited 0.2 s)\n"


@pytest.mark.parametrize("arguments", [[], ["a:1", "b:2"]])
def test_wrong_arguments_have_their_own_exit_code(arguments: list[str]) -> None:
    assert health.main(arguments) == 2


def test_the_check_imports_no_other_module_of_podrace() -> None:
    program = "import sys, podrace.health; print(*(name for name in sys.modules if name.split('.')[0] in sys.argv))"
    command = [sys.executable, "-c", program, "podrace", "structlog", "prometheus_client"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) == {"podrace", "podrace.health"}
