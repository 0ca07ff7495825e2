"""Services that require certificates or a token are examined like others; without these, one line says what to do."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from reports import wrong

from agentpod.compute_thread import ComputeThread
from agentpod.roles.worker import WorkerServicer
from podrace import rpc, tls
from podrace.access.authenticators.certificate import CertificateAuthenticator
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.service_access import AccessConfig, ServiceAccess
from podrace.access.tokens import claims_of
from podrace.access.v1 import access_pb2
from podrace.agentpod.v1 import agentpod_pb2, agentpod_pb2_grpc
from podrace.certificates.folder import STANDARD, CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.conformance.sessions import Examination, examine, read_token
from podrace.errors import Unauthenticated
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.remote import GrpcPlane
from simulators.config import Limits
from simulators.service import SimulatorServicer, services

REPOSITORY = Path(__file__).parents[3]
YEAR = timedelta(days=365)


@dataclass
class Certificates:
    """Certificates of one authority, and what makes this process, or a child, the holder of one."""

    folder: CertificateFolder
    monkeypatch: pytest.MonkeyPatch

    def variables(self, holder: str) -> dict[str, str]:
        """Environment of the holder of a certificate; empty: of a process that has the authority alone."""
        files = ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key"))
        own = {name: str(self.folder.path / holder / file) if holder else "" for name, file in files}
        return {**own, tls.AUTHORITY: str(self.folder.path / "authority/ca.crt")}

    def become(self, holder: str) -> None:
        for name, value in self.variables(holder).items():
            self.monkeypatch.setenv(name, value)

    def token(self, path: Path, *, seconds: float = 600.0) -> Path:
        """Writes a token of a user to a file."""
        key = MeshKey.load_or_make(self.folder.path / "orchestrator/mesh.key")
        claims = claims_of("alice", {ROLES_BY_NAME["user"]}, expire_time=time.time() + seconds)
        path.write_text(key.sign(claims) + "\n")
        return path


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    now = datetime.now(UTC)
    folder = CertificateFolder.create(tmp_path / "certs", now)
    for name, hosts in STANDARD.items():
        folder.add(name, hosts, now, YEAR)
    folder.add(SpiffeName("user", "alice"), [], now, YEAR)
    folder.make_mesh_key()
    return Certificates(folder, monkeypatch)


@pytest.fixture
async def simulators(certificates: Certificates, tmp_path: Path) -> AsyncIterator[rpc.Server]:
    """The simulator service of podrace: one address for certificates, another one for tokens."""
    certificates.become("plugin/simulators")
    keys = (str(certificates.folder.path / "leaderboard/mesh.pub"),)
    config = AccessConfig(public_keys=keys, token_file=str(tmp_path / "own-token"), calls_per_second=0.0)
    access = ServiceAccess.open(config, access_pb2.ROLE_PLUGIN, "127.0.0.1:0")
    server = await rpc.Server.start(
        rpc.ServerConfig(listen="127.0.0.1:0", token_listen="127.0.0.1:0", grace_seconds=0.0),
        services(SimulatorServicer(Limits())),
        guard=Guard(access.authenticators),
    )
    certificates.become("")
    yield server
    await server.drain()


async def test_a_service_with_tls_is_examined_with_a_certificate(
    certificates: Certificates, simulators: rpc.Server
) -> None:
    certificates.become("user/alice")
    report = await examine(Examination("simulator", simulators.address))
    assert wrong(report) == {}
    assert report.conforms


async def test_a_service_with_tokens_is_examined_with_that_of_the_token_file(
    certificates: Certificates, simulators: rpc.Server, tmp_path: Path
) -> None:
    path = certificates.token(tmp_path / "token")
    code, out, err = await conform(certificates, "", simulators.token_address, "--token-file", str(path))
    assert (code, out) == (0, ""), err
    assert " conforms to the contract of a simulator: " in err


@pytest.mark.parametrize("seconds", [None, -600.0])
async def test_without_a_valid_token_one_line_says_what_is_missing(
    certificates: Certificates, simulators: rpc.Server, tmp_path: Path, seconds: float | None
) -> None:
    token = read_token(certificates.token(tmp_path / "token", seconds=seconds)) if seconds else None
    line = (
        r"^the service answers UNAUTHENTICATED: give --token-file FILE with a token .* no token of the environment.*$"
    )
    with pytest.raises(Unauthenticated, match=line):
        await examine(Examination("simulator", simulators.token_address, token=token))


async def test_without_tls_one_line_names_the_variables(certificates: Certificates, simulators: rpc.Server) -> None:
    code, out, err = await conform(None, "", simulators.address)
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: {simulators.address}: no connection within ")
    assert line.endswith("PODRACE_TLS_CERTIFICATE_FILE, PODRACE_TLS_KEY_FILE and PODRACE_TLS_AUTHORITY_FILE")


async def conform(certificates: Certificates | None, holder: str, *arguments: str) -> tuple[int, str, str]:
    """Runs the command as another process; returns the exit code and what it printed."""
    variables = certificates.variables(holder) if certificates else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PODRACE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "podrace.cli", "conform", "--as", "simulator", *arguments),
        env={**kept, "PYTHONPATH": str(REPOSITORY), **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread()
    yield thread
    thread.close()


@asynccontextmanager
async def serving_worker(compute: ComputeThread) -> AsyncIterator[str]:
    descriptor: Any = agentpod_pb2.DESCRIPTOR.services_by_name["WorkerService"]
    servicer = WorkerServicer(Planes(GrpcPlane()), compute)
    service = rpc.Service(descriptor, agentpod_pb2_grpc.add_WorkerServiceServicer_to_server, servicer)
    by_certificate = CertificateAuthenticator.from_environment()
    assert by_certificate is not None
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await rpc.Server.start(config, [service], guard=Guard([by_certificate]))
    try:
        yield server.address
    finally:
        await server.drain()


async def test_a_worker_with_tls_reads_and_writes_the_tensors_over_tls(
    certificates: Certificates, compute: ComputeThread
) -> None:
    # Both ends have the certificate of the pod: its name covers this machine, and its role the calls of both.
    certificates.become("pod-leader")
    async with serving_worker(compute) as address:
        report = await examine(Examination("worker", address, environment="cartpole"))
    assert wrong(report) == {}
    assert report.conforms
