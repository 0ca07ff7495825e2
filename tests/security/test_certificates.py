"""What a certificate lets its holder do at a live server, and what happens when it is renewed or revoked meanwhile.

Before certificates carried roles, every certificate of the authority was as good as any other: that of a pod created
and cancelled tournaments.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from identity_provider import IdentityProvider

from podrace import rpc, tls
from podrace.access.authenticators.certificate import PEM, CertificateAuthenticator
from podrace.access.authenticators.oidc import OidcAuthenticator, OidcConfig
from podrace.access.guard import Guard
from podrace.access.mesh_key import PublicKeys
from podrace.access.principal import Principal, current_principal
from podrace.access.service_access import AccessConfig, ServiceAccess
from podrace.access.token_file import operator_token
from podrace.access.tokens import AUDIENCE
from podrace.access.v1 import access_pb2
from podrace.certificates.folder import STANDARD, CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import renewing_channel

YEAR = timedelta(days=365)
Become = Callable[[str], None]
REQUESTS = {
    "AcquireAssignment": lambda: pb.AcquireAssignmentRequest(pod_id="host-1"),
    "CreateTournament": lambda: pb.CreateTournamentRequest(request_id="r"),
    "CancelTournament": lambda: pb.CancelTournamentRequest(request_id="r", tournament_id="t"),
    "GetTournament": lambda: pb.GetTournamentRequest(tournament_id="t"),
}


class Orchestrator(pb_grpc.OrchestratorServiceServicer):
    """Records who called, and the serial number of the certificate that the connection presented."""

    def __init__(self) -> None:
        self.callers: list[Principal | None] = []
        self.serials: list[int] = []

    def _record(self, context: Any) -> None:
        self.callers.append(current_principal())
        for pem in context.auth_context().get(PEM, ()):
            self.serials.append(x509.load_pem_x509_certificate(pem).serial_number)

    async def CreateTournament(self, request: Any, context: Any) -> Any:
        self._record(context)
        return pb.CreateTournamentResponse()

    async def AcquireAssignment(self, request: Any, context: Any) -> Any:
        self._record(context)
        return pb.AcquireAssignmentResponse()

    async def CancelTournament(self, request: Any, context: Any) -> Any:
        self._record(context)
        return pb.CancelTournamentResponse()

    async def GetTournament(self, request: Any, context: Any) -> Any:
        self._record(context)
        return pb.GetTournamentResponse()


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def folder(tmp_path: Path, now: datetime) -> CertificateFolder:
    made = CertificateFolder.create(tmp_path / "certs", now)
    for name, hosts in STANDARD.items():
        made.add(name, hosts, now, YEAR)
    for role in ("user", "viewer"):
        made.add(SpiffeName(role, "alice"), [], now, YEAR)
    return made


@pytest.fixture
def become(folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Returns a function that makes this process the holder of a certificate; empty: of none, with the authority."""
    monkeypatch.setattr(renewing_channel, "LOOK_SECONDS", 0.0)

    def chosen(path: str) -> None:
        for name, file in ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key")):
            monkeypatch.setenv(name, str(folder.path / path / file) if path else "")
        monkeypatch.setenv(tls.AUTHORITY, str(folder.path / "authority/ca.crt"))
        monkeypatch.setenv(tls.REVOCATION, str(folder.path / "authority/ca.crl"))

    return chosen


@pytest.fixture
def orchestrator() -> Orchestrator:
    return Orchestrator()


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as served:
        yield served


async def served(orchestrator: Orchestrator, provider: IdentityProvider, **settings: Any) -> rpc.Server:
    certificates = CertificateAuthenticator.from_environment()
    assert certificates is not None
    oidc = OidcAuthenticator(OidcConfig(issuer=provider.issuer, roles=("ml-team=user",)))
    service = rpc.Service(
        pb.DESCRIPTOR.services_by_name["OrchestratorService"],
        pb_grpc.add_OrchestratorServiceServicer_to_server,
        orchestrator,
    )
    config = rpc.ServerConfig(grace_seconds=0.0, **settings)
    return await rpc.Server.start(config, [service], guard=Guard([certificates, oidc]))


@pytest.fixture
async def server(orchestrator: Orchestrator, become: Become, provider: IdentityProvider) -> AsyncIterator[rpc.Server]:
    become("orchestrator")
    started = await served(orchestrator, provider, token_listen="127.0.0.1:0")
    yield started
    await started.drain()


async def call(channel: Any, method: str) -> Any:
    stub = pb_grpc.OrchestratorServiceStub(channel)
    return await rpc.call(getattr(stub, method), REQUESTS[method](), deadline_seconds=10.0)


async def call_as(become: Become, path: str, address: str, method: str, token: str = "") -> Any:
    become(path)
    async with rpc.connect(address, token=(lambda: token) if token else None) as channel:
        return await call(channel, method)


@pytest.mark.parametrize("path", ["pod-role", "pod-leader", "plugin/plugin", "plugin/simulators", "leaderboard"])
@pytest.mark.parametrize("method", ["CreateTournament", "CancelTournament"])
async def test_a_pods_certificate_can_no_longer_create_or_cancel_tournaments(
    server: rpc.Server, orchestrator: Orchestrator, become: Become, path: str, method: str
) -> None:
    with pytest.raises(PermissionDenied, match="needs user"):
        await call_as(become, path, server.address, method)
    assert orchestrator.callers == []


async def test_a_pod_that_was_started_elsewhere_acts_for_the_pod_in_its_certificate_only(
    server: rpc.Server, orchestrator: Orchestrator, folder: CertificateFolder, become: Become, now: datetime
) -> None:
    for name in ("host-1", "host-2"):
        folder.add(SpiffeName("pod-leader", name), [], now, YEAR)
    await call_as(become, "pod-leader/host-1", server.address, "AcquireAssignment")
    await call_as(become, "pod-leader", server.address, "AcquireAssignment")
    assert [caller.pod_id for caller in orchestrator.callers if caller] == ["host-1", ""]
    with pytest.raises(PermissionDenied, match="may not act for pod 'host-1'"):
        await call_as(become, "pod-leader/host-2", server.address, "AcquireAssignment")
    with pytest.raises(PermissionDenied, match="needs pod-leader"):
        await call_as(become, "pod-role", server.address, "AcquireAssignment")


async def test_people_may_do_what_their_roles_say(
    server: rpc.Server, orchestrator: Orchestrator, become: Become
) -> None:
    for path in ("user/alice", "operator/operator"):
        await call_as(become, path, server.address, "CreateTournament")
    assert [caller.name for caller in orchestrator.callers if caller] == ["alice", "operator"]
    await call_as(become, "viewer/alice", server.address, "GetTournament")
    with pytest.raises(PermissionDenied):
        await call_as(become, "viewer/alice", server.address, "CancelTournament")


async def test_a_certificate_that_is_revoked_is_refused_on_its_open_connection(
    server: rpc.Server, folder: CertificateFolder, become: Become, now: datetime
) -> None:
    become("user/alice")
    async with rpc.connect(server.address) as channel:
        await call(channel, "CreateTournament")
        folder.revoke("user/alice", now)
        with pytest.raises(Unauthenticated, match="the certificate of alice was revoked"):
            await call(channel, "CreateTournament")
        # The new certificate of the same person is used by the same channel.
        folder.renew("user/alice", now)
        await call(channel, "CreateTournament")


async def test_a_token_does_not_help_on_a_connection_whose_certificate_is_revoked(
    server: rpc.Server, folder: CertificateFolder, become: Become, provider: IdentityProvider, now: datetime
) -> None:
    # Earlier versions did not check the certificate of a caller with a token. The first call makes the token known.
    become("pod-role")
    token = provider.token(now.timestamp())
    async with rpc.connect(server.address, token=lambda: token) as channel:
        await call(channel, "CreateTournament")
        folder.revoke("pod-role", now)
        with pytest.raises(Unauthenticated, match="the certificate of this connection was revoked"):
            await call(channel, "CreateTournament")


async def test_client_and_server_use_renewed_certificates_without_a_restart(
    server: rpc.Server, orchestrator: Orchestrator, folder: CertificateFolder, become: Become, now: datetime
) -> None:
    become("user/alice")
    async with rpc.connect(server.address) as channel:
        await call(channel, "GetTournament")
        renewed = folder.renew("user/alice", now)
        folder.renew("orchestrator", now)
        await call(channel, "GetTournament")
        await call(channel, "GetTournament")
    assert orchestrator.serials[0] != renewed.serial
    assert orchestrator.serials[1:] == [renewed.serial] * 2


async def test_a_channel_keeps_its_certificate_while_files_are_being_replaced(
    server: rpc.Server, folder: CertificateFolder, become: Become
) -> None:
    become("user/alice")
    async with rpc.connect(server.address) as channel:
        await call(channel, "GetTournament")
        (folder.path / "user/alice/tls.key").write_text("half of a k")
        await call(channel, "GetTournament")
        (folder.path / "user/alice/tls.key").unlink()
        await call(channel, "GetTournament")


async def test_the_certificate_of_a_pod_or_a_person_does_not_make_a_service(
    orchestrator: Orchestrator, provider: IdentityProvider, become: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tls.SERVER_NAME, "podrace-orchestrator")
    for path in ("pod-role", "user/alice"):
        become(path)
        pretending = await served(orchestrator, provider)
        try:
            with pytest.raises(Unavailable):
                await call_as(become, "user/alice", pretending.address, "GetTournament")
        finally:
            await pretending.drain()
    assert orchestrator.callers == []


async def test_a_caller_without_a_certificate_reaches_only_the_address_for_tokens_and_needs_one_there(
    server: rpc.Server, orchestrator: Orchestrator, become: Become, provider: IdentityProvider, now: datetime
) -> None:
    token = provider.token(now.timestamp())
    with pytest.raises(Unavailable):
        await call_as(become, "", server.address, "CreateTournament", token)
    with pytest.raises(Unauthenticated, match="presented no token"):
        await call_as(become, "", server.token_address, "CreateTournament")
    foreign = provider.token(now.timestamp(), aud="elsewhere")
    with pytest.raises(Unauthenticated, match="not meant for this mesh"):
        await call_as(become, "", server.token_address, "CreateTournament", foreign)
    assert orchestrator.callers == []
    await call_as(become, "", server.token_address, "CreateTournament", token)
    assert [(caller.name, caller.via) for caller in orchestrator.callers if caller] == [("alice", "oidc")]


async def test_the_address_for_tokens_refuses_a_caller_before_its_request_arrives(
    server: rpc.Server, become: Become
) -> None:
    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    become("")
    async with rpc.connect(server.token_address) as channel:
        create: Any = channel.stream_unary("/podrace.orchestrator.v1.OrchestratorService/CreateTournament")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await create(never(), timeout=20.0)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_pod_with_the_token_of_a_person_is_that_person_and_one_without_is_not(
    server: rpc.Server, orchestrator: Orchestrator, become: Become, provider: IdentityProvider, now: datetime
) -> None:
    await call_as(become, "pod-role", server.address, "CreateTournament", provider.token(now.timestamp()))
    assert [caller.via for caller in orchestrator.callers if caller] == ["oidc"]
    with pytest.raises(PermissionDenied):
        await call_as(become, "pod-role", server.address, "CreateTournament")


async def test_an_address_for_tokens_without_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (tls.CERTIFICATE, tls.KEY, tls.AUTHORITY):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgument, match=r"server\.token_listen = '127\.0\.0\.1:0': needs TLS"):
        await rpc.Server.start(rpc.ServerConfig(token_listen="127.0.0.1:0"), [])


def opened(listen: str, *, insecure: bool = False, **config: Any) -> list[str]:
    """Names of the authenticators of a service that listens there."""
    access = ServiceAccess.open(
        AccessConfig(**config), access_pb2.ROLE_ORCHESTRATOR, listen, "10.0.0.2:50052", insecure=insecure
    )
    return [type(each).__name__ for each in access.authenticators]


def test_a_service_on_the_network_knows_callers_by_certificates_and_lets_no_anonymous_caller_in(
    become: Become, folder: CertificateFolder
) -> None:
    become("orchestrator")
    folder.make_mesh_key()
    key = str(folder.path / "orchestrator/mesh.key")
    assert opened("0.0.0.0:50051") == ["UnixSocketAuthenticator", "CertificateAuthenticator"]
    assert opened("0.0.0.0:50051", mesh_key=key)[1:] == ["SignedTokenAuthenticator", "CertificateAuthenticator"]
    oidc = OidcConfig(issuer="https://id.example.org", roles=("ml-team=user",))
    assert opened("127.0.0.1:50051")[-1] == "CertificateAuthenticator"
    assert opened("0.0.0.0:50051", oidc=oidc)[1:] == ["OidcAuthenticator", "CertificateAuthenticator"]


def test_everyone_is_let_in_only_where_the_operator_has_said_insecure(
    become: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("")
    monkeypatch.delenv(tls.AUTHORITY)
    assert opened("0.0.0.0:50051", insecure=True) == ["UnixSocketAuthenticator", "AnyoneAuthenticator"]
    assert "AnyoneAuthenticator" not in opened("127.0.0.1:50051", insecure=True)
    assert opened("unix:/run/o.sock", insecure=True) == ["UnixSocketAuthenticator"]
    for listen in ("0.0.0.0:50051", "127.0.0.1:50051", "127.1:50051", "LOCALHOST:50051", "machine:50051", ":50051"):
        assert "AnyoneAuthenticator" not in opened(listen), listen


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0", "LOCALHOST:0", "127.1:0", "machine:0"])
def test_a_service_that_may_listen_without_tls_asks_for_the_token(
    become: Become, monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    become("")
    monkeypatch.delenv(tls.AUTHORITY)
    # Some systems list the name of the machine as 127.0.1.1.
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: [(2, 1, 6, "", ("127.0.1.1", 0))])
    assert ("StaticTokenAuthenticator" in opened(listen)) == rpc.is_local(listen)
    assert (operator_token(listen, {}) is not None) == rpc.is_local(listen)


def test_the_orchestrator_signs_tokens_that_the_leaderboard_verifies_with_the_public_key(
    become: Become, folder: CertificateFolder
) -> None:
    become("orchestrator")
    folder.make_mesh_key()
    private = AccessConfig(mesh_key=str(folder.path / "orchestrator/mesh.key"))
    signing = ServiceAccess.open(private, access_pb2.ROLE_ORCHESTRATOR, "0.0.0.0:50051", "leaderboard:50052")
    assert signing.token is not None
    for name in ("mesh.pub", "certificate.pem"):
        public = folder.path / "leaderboard" / name
        if name == "certificate.pem":
            # As cert-manager stores it: the public key is in a certificate.
            public.write_bytes(certificate_of((folder.path / "orchestrator/mesh.key").read_bytes()))
        verifying = PublicKeys.load([public])
        claims = verifying.verify(signing.token(), audience=AUDIENCE)
        assert claims["roles"] == ["orchestrator"]


def certificate_of(private_key: bytes) -> bytes:
    key = serialization.load_pem_private_key(private_key, None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "podrace mesh key")])
    begin = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + YEAR)  # type: ignore[arg-type]
    return builder.sign(key, None).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
