"""Standing services on addresses of the network: processes with TLS, and certificates that say who calls.

Before, a service without TLS listened on any address, and with TLS every certificate of the authority had all rights.
"""

import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from test_one_machine import SECONDS, free_port, spec

from podrace import rpc, tls
from podrace.certificates.folder import STANDARD, CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.client import Client
from podrace.errors import PermissionDenied, PodraceError, Unauthenticated, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import renewing_channel
from podrace.tournament.v1 import tournament_pb2

FILES = {tls.CERTIFICATE: "tls.crt", tls.KEY: "tls.key", tls.AUTHORITY: "ca.crt", tls.REVOCATION: "ca.crl"}


class Network:
    """A folder with certificates, and processes that listen on all addresses of this machine."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.tokens = ""
        """Address for callers with tokens of other issuers, if there is one."""
        self._ports = {name: free_port() for name in ("orchestrator", "leaderboard", "simulators")}
        now = datetime.now(UTC)
        self.certificates = CertificateFolder.create(folder / "certs", now)
        for name, hosts in {**STANDARD, SpiffeName("user", "alice"): ()}.items():
            self.certificates.add(name, hosts, now, timedelta(days=1))
        self.certificates.make_mesh_key()

    def environment(self, path: str) -> dict[str, str]:
        return {name: str(self.certificates.path / path / file) for name, file in FILES.items()}

    def address(self, program: str) -> str:
        return f"127.0.0.1:{self._ports[program]}"

    def start(self, program: str, certificate: str, *arguments: str, **settings: Any) -> "subprocess.Popen[bytes]":
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
        command = [sys.executable, "-m", program, *arguments, *(part for pair in pairs for part in ("--set", pair))]
        log = self._stack.enter_context((self.folder / f"{program}.log").open("wb"))
        # Services that call an address of this machine make a token as well; no caller of these tests has it.
        environment = os.environ | self.environment(certificate) | {"PODRACE_TOKEN_FILE": f"{self.folder}/access/token"}
        process = subprocess.Popen(command, stderr=log, env=environment)
        self._stack.callback(process.wait, SECONDS)
        self._stack.callback(process.send_signal, signal.SIGTERM)
        return process

    def serve(self, **settings: Any) -> None:
        """Starts the services; the settings are further ones of the orchestrator."""
        folder, certs = self.folder, self.certificates.path
        common = {"store": f"folder://{folder}/store"}
        self.start(
            "leaderboard",
            "leaderboard",
            server__listen=f"0.0.0.0:{self._ports['leaderboard']}",
            database=folder / "l.sqlite",
            access__public_keys=certs / "leaderboard/mesh.pub",
            **common,
        )
        self.start(
            "orchestrator",
            "orchestrator",
            server__listen=f"0.0.0.0:{self._ports['orchestrator']}",
            leaderboard=self.address("leaderboard"),
            database=folder / "o.sqlite",
            access__mesh_key=certs / "orchestrator/mesh.key",
            runtime_folder=folder / "run",
            log_folder=folder / "logs",
            launcher="external",
            **common,
            **settings,
        )


@pytest.fixture
def network() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        yield Network(Path(name), stack)


@pytest.fixture
def become(network: Network, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function that makes the test the holder of a certificate, or of none."""
    monkeypatch.setattr(renewing_channel, "LOOK_SECONDS", 0.0)
    monkeypatch.delenv("PODRACE_TOKEN_FILE", raising=False)

    def chosen(path: str) -> None:
        for name, file in network.environment(path).items():
            monkeypatch.setenv(name, file if path else "")

    return chosen


@pytest.mark.parametrize("program", ["orchestrator", "leaderboard", "simulators"])
def test_a_service_without_certificates_refuses_to_listen_for_other_machines(program: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PODRACE_TLS")}
    settings = {"server.listen": "0.0.0.0:0"}
    if program != "simulators":
        settings |= {"database": f"{tmp_path}/d.sqlite", "store": f"folder://{tmp_path}/store"}
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", program, *pairs]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: cannot listen on 0.0.0.0:0 without TLS")
    assert "podrace certs make" in last
    assert "--insecure" in last


@pytest.mark.e2e
async def test_a_pod_with_its_certificate_trains_for_a_person_and_can_do_nothing_else(
    network: Network, become: Callable[[str], None]
) -> None:
    network.serve()
    become("user/alice")
    for program in ("orchestrator", "leaderboard"):
        await rpc.wait_until_serving(network.address(program), deadline_seconds=SECONDS)
    orchestrator = network.address("orchestrator")

    for path in ("pod-role", "pod-leader", "plugin/plugin"):
        become(path)
        async with Client(orchestrator) as client:
            with pytest.raises(PermissionDenied, match="needs user"):
                await client.create_tournament(spec())

    become("user/alice")
    async with Client(orchestrator) as client:
        created = await client.create_tournament(spec())
        network.start(
            "agentpod",
            "pod-leader",
            "learner",
            pod_id="own-machine",
            standing="true",
            orchestrator=orchestrator,
            leaderboard=network.address("leaderboard"),
            store=f"folder://{network.folder}/store",
            folder=network.folder / "pod",
        )
        async for update in client.follow(created):
            ended = update.tournament
        assert ended.state == tournament_pb2.TOURNAMENT_STATE_COMPLETED, ended.reason
        assert await client.list_board(ended)

        network.certificates.revoke("user/alice", datetime.now(UTC))
        with pytest.raises(Unauthenticated, match="the certificate of alice was revoked"):
            await client.list_board(ended)
    become("")
    with pytest.raises(Unavailable):
        await rpc.wait_until_serving(orchestrator, deadline_seconds=1.0)


def presented_serial(network: Network, program: str) -> int:
    """Serial number of the certificate that a running program presents to a new connection."""
    files = network.environment("user/alice")
    context = ssl.create_default_context(cafile=files[tls.AUTHORITY])
    context.load_cert_chain(files[tls.CERTIFICATE], files[tls.KEY])
    context.set_alpn_protocols(["h2"])
    address = network.address(program)
    with (
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname="127.0.0.1") as encrypted,
    ):
        presented = encrypted.getpeercert(binary_form=True)
    assert presented is not None
    return x509.load_der_x509_certificate(presented).serial_number


async def answer(address: str, stub: Any, method: str, request: Any) -> str:
    """Makes a call over a new connection; returns the status."""
    async with rpc.connect(address) as channel:
        try:
            await rpc.call(getattr(stub(channel), method), request, deadline_seconds=10.0)
        except PodraceError as error:
            return error.code
    return "OK"


@pytest.mark.e2e
async def test_running_programs_use_renewed_certificates_and_refuse_revoked_ones(
    network: Network, become: Callable[[str], None]
) -> None:
    network.serve()
    become("operator/operator")
    for program in ("orchestrator", "leaderboard"):
        await rpc.wait_until_serving(network.address(program), deadline_seconds=SECONDS)
        renewed = network.certificates.renew(program, datetime.now(UTC))
        assert presented_serial(network, program) == renewed.serial

    calls: dict[str, tuple[str, Any, Any, Any]] = {
        "pod-leader": (
            network.address("orchestrator"),
            pb_grpc.OrchestratorServiceStub,
            "AcquireAssignment",
            pb.AcquireAssignmentRequest(pod_id="own-machine"),
        ),
        "orchestrator": (
            network.address("leaderboard"),
            board_grpc.LeaderboardServiceStub,
            "ListCandidates",
            board_pb.ListCandidatesRequest(tournament_id="none-x1"),
        ),
    }
    for certificate, call in calls.items():
        become(certificate)
        before = await answer(*call)
        assert before not in ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE")
        network.certificates.revoke(certificate, datetime.now(UTC))
        assert await answer(*call) == "UNAUTHENTICATED"
        network.certificates.renew(certificate, datetime.now(UTC))
        assert await answer(*call) == before
