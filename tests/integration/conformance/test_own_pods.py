"""Pods of podrace pass the examination, in both layouts, with a store, with StoreService, and with TLS."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fork_servers import REPOSITORY, connected, running_fork_server
from reports import untested, wrong

from agentpod.config import PodConfig
from agentpod.process.wiring import run_leader
from podrace import tls
from podrace.certificates.folder import STANDARD, CertificateFolder
from podrace.conformance.findings import Report
from podrace.conformance.sessions import Examination, examine
from podrace.limits.config import EVERYTHING
from podrace.telemetry import TelemetryConfig

LEASE_SECONDS = 6.0
ENVIRONMENT = "python:sleepy_environment:Drowsy"
"""Pods train until the examination has seen enough, and leave the processors to other tests."""
GRANTED_STORE = "minio+http://127.0.0.1:9/conformance"
"""A pod that uses StoreService needs the kind of the store; it sends requests to granted URLs only."""
Start = Callable[[PodConfig], Awaitable[object]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder directly under /tmp, because Linux limits socket paths to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        Path(name).chmod(0o700)
        yield Path(name)


async def examined(folder: Path, start: Start, *, address: str = "", store: str = "", layout: str = "fused") -> Report:
    """Examines a pod, which is started again whenever the examination asks for it."""
    address, runs = address or f"unix:{folder}/m.sock", []

    def start_again(line: str) -> None:
        config = PodConfig(
            pod_id="examined",
            orchestrator=address,
            leaderboard=address,
            store=store or GRANTED_STORE,
            store_access="direct" if store else "granted",
            folder=folder / f"pod-{len(runs)}",
            layout=layout,
            orphan_seconds=5.0,
            telemetry=TelemetryConfig(metrics_listen="", log_level="warning"),
            allow=EVERYTHING,
        )
        config.folder.mkdir(mode=0o700)
        runs.append(asyncio.ensure_future(start(config)))

    wanted = Examination(
        "pod", address, environment=ENVIRONMENT, store=store, notify=start_again, lease_seconds=LEASE_SECONDS
    )
    try:
        return await examine(wanted)
    finally:
        for run in runs:
            run.cancel()
        failed = [each for each in await asyncio.gather(*runs, return_exceptions=True) if isinstance(each, Exception)]
        assert not failed, failed


def assert_passes(report: Report) -> None:
    assert wrong(report) == {}
    assert untested(report) == set()
    assert report.conforms


async def test_a_pod_with_a_store_passes(folder: Path) -> None:
    assert_passes(await examined(folder, run_leader, store=f"folder://{folder}/store"))


async def test_a_pod_that_uses_store_service_over_tls_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    certificates = CertificateFolder.create(folder / "certs", now)
    for name, hosts in STANDARD.items():
        certificates.add(name, hosts, now, timedelta(days=1))
    for variable, file in ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key")):
        monkeypatch.setenv(variable, str(certificates.path / "pod-leader" / file))
    monkeypatch.setenv(tls.AUTHORITY, str(certificates.path / "authority/ca.crt"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert_passes(await examined(folder, run_leader, address=address))


@asynccontextmanager
async def forking(folder: Path) -> AsyncIterator[Start]:
    """Starts pods as processes; they exit with the block."""
    (folder / "forks").mkdir(mode=0o700)
    with running_fork_server(folder / "forks", PYTHONPATH=f"{REPOSITORY}:{REPOSITORY}/tests/chaos") as server:
        async with connected(server, folder) as connection:
            yield connection.start


async def test_a_pod_of_several_processes_passes(folder: Path) -> None:
    async with forking(folder) as start:
        assert_passes(await examined(folder, start, layout="separate"))
