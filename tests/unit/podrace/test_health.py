"""What a container engine learns of a service from an exit code."""

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


class Patient(health_pb2_grpc.HealthServicer):
    """Says one thing after another; None is an error, and the last is said for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def Check(self, request: Any, context: Any) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return STATUS(status=answer)


@pytest.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    made = grpc.aio.server()
    yield made
    await made.stop(None)


async def serve(server: grpc.aio.Server, servicer: Patient) -> str:
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("before", [(), (None, STATUS.NOT_SERVING, STATUS.SERVICE_UNKNOWN)])
async def test_a_service_is_well_as_soon_as_it_says_so(server: grpc.aio.Server, before: tuple[Any, ...]) -> None:
    servicer = Patient(*before, STATUS.SERVING)
    address = await serve(server, servicer)
    assert await asyncio.to_thread(health.main, [address]) == 0
    assert servicer.asked == len(before) + 1


async def test_a_service_that_does_not_say_so_in_time_is_not_well(
    server: grpc.aio.Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "DEADLINE_SECONDS", 0.2)
    address = await serve(server, Patient(STATUS.NOT_SERVING))
    assert await asyncio.to_thread(health.main, [address]) == 1
    assert capsys.readouterr().err == f"error: nothing serves at {address} (waited 0.2 s)\n"


def test_an_address_where_nobody_is_is_not_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(health, "DEADLINE_SECONDS", 0.2)
    assert health.main([f"unix:{tmp_path / 's'}"]) == 1


@pytest.mark.parametrize("arguments", [[], ["a:1", "b:2"]])
def test_a_wrong_call_is_told_from_a_service_that_is_not_well(arguments: list[str]) -> None:
    assert health.main(arguments) == 2


def test_the_probe_imports_nothing_of_podrace() -> None:
    program = "import sys, podrace.health; print(*(name for name in sys.modules if name.split('.')[0] in sys.argv))"
    command = [sys.executable, "-c", program, "podrace", "structlog", "prometheus_client"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) == {"podrace", "podrace.health"}
