"""While a service opens its database, it is alive and not ready, however long that takes."""

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import prometheus_client
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from podrace import rpc
from podrace.backup.config import BackupConfig
from podrace.backup.opening import open_when_leading
from podrace.database import Database, DatabaseLocation, Format

FORMAT = Format("orchestrator", 7, 1, "CREATE TABLE numbers (number INTEGER)")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
BOUND_SECONDS = 10.0


async def status(address: str, service: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        check = health_pb2_grpc.HealthStub(channel).Check
        return int((await check(request, wait_for_ready=True, timeout=BOUND_SECONDS)).status)


def leads() -> float | None:
    """The sample from which Prometheus sees that no replica leads."""
    return prometheus_client.REGISTRY.get_sample_value("podrace_replica_leads")


@pytest.mark.parametrize("period_seconds", [0.0, 900.0], ids=["without backups", "with backups"])
async def test_a_file_that_takes_long_to_open_leaves_the_service_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, period_seconds: float
) -> None:
    migrating, migrated, open_file = threading.Event(), threading.Event(), Database.open

    def open_slowly(*arguments: Any) -> Database:
        migrating.set()
        # The limit is for a defect: then the service answers nothing meanwhile.
        migrated.wait(BOUND_SECONDS)
        return open_file(*arguments)

    monkeypatch.setattr(Database, "open", open_slowly)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config, backups = rpc.ServerConfig(health_listen=address), BackupConfig(period_seconds=period_seconds)
    location = DatabaseLocation(tmp_path / "state.sqlite")
    opening = asyncio.create_task(
        open_when_leading(location, FORMAT, time.time, backups, f"folder://{tmp_path / 'store'}", config)
    )
    try:
        await asyncio.to_thread(migrating.wait, BOUND_SECONDS)
        assert await status(address, rpc.LIVENESS) == SERVING
        assert await status(address, "") == NOT_SERVING
        assert leads() == 0.0
        assert not opening.done()
    finally:
        migrated.set()
        opened = await opening
        opened.database.close()
    assert leads() == 1.0
