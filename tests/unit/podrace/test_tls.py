"""Tests mutual TLS with certificates of authorities that the tests create."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from podrace import rpc, tls
from podrace.errors import FailedPrecondition, InvalidArgument, PodraceError, Unavailable
from podrace.rpc import Server, ServerConfig

Become = Callable[..., None]


def write(folder: Path, authority: trustme.CA, *names: str) -> None:
    """Writes key, certificate and authority of a service whose certificate is valid for these names."""
    folder.mkdir(exist_ok=True)
    leaf = authority.issue_cert(*names)
    leaf.private_key_pem.write_to_path(folder / "tls.key")
    (folder / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    authority.cert_pem.write_to_path(folder / "ca.crt")


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Returns a function that sets the TLS files of this process; without a folder: no TLS."""

    def chosen(folder: Path | None, server_name: str = "") -> None:
        for name, file in ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key"), (tls.AUTHORITY, "ca.crt")):
            monkeypatch.setenv(name, str(folder / file) if folder else "")
        monkeypatch.setenv(tls.SERVER_NAME, server_name)

    chosen(None)
    return chosen


@pytest.fixture
def member(tmp_path: Path) -> Path:
    write(tmp_path / "member", trustme.CA(), "127.0.0.1")
    return tmp_path / "member"


@pytest.fixture
async def server(member: Path, become: Become) -> AsyncIterator[Server]:
    become(member)
    started = await Server.start(ServerConfig(grace_seconds=0.0, health_listen="127.0.0.1:0"), [])
    yield started
    await started.drain()


async def health_of(address: str) -> Any:
    """Returns the health that the server reports."""
    channel = rpc.connect(address)
    try:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        answer = await rpc.call(check, health_pb2.HealthCheckRequest(), deadline_seconds=5.0)
    finally:
        await channel.close()
    return answer.status


async def test_services_of_one_authority_connect(server: Server) -> None:
    assert await health_of(server.address) == health_pb2.HealthCheckResponse.SERVING


async def test_a_client_without_a_certificate_is_refused(server: Server, become: Become) -> None:
    become(None)
    with pytest.raises(Unavailable):
        await health_of(server.address)


async def test_a_client_of_another_authority_refuses_the_server_and_is_refused(
    server: Server, become: Become, member: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write(other, trustme.CA(), "127.0.0.1")
    become(other)
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await health_of(server.address)
    # Refused even if the client trusts the server: its certificate is of another authority.
    (other / "ca.crt").write_bytes((member / "ca.crt").read_bytes())
    with pytest.raises(Unavailable):
        await health_of(server.address)


async def test_the_certificate_must_have_the_host_name_or_the_name_that_is_set(become: Become, tmp_path: Path) -> None:
    write(tmp_path / "named", trustme.CA(), "podrace-orchestrator")
    become(tmp_path / "named")
    server = await Server.start(ServerConfig(grace_seconds=0.0), [])
    try:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await health_of(server.address)
        become(tmp_path / "named", server_name="podrace-orchestrator")
        assert await health_of(server.address) == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.drain()


async def test_unix_sockets_need_no_certificates(member: Path, become: Become, tmp_path: Path) -> None:
    become(member)
    address = f"unix:{tmp_path}/s"
    server = await Server.start(ServerConfig(listen=address, grace_seconds=0.0), [])
    try:
        become(None)
        assert await health_of(address) == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.drain()


async def test_health_is_reported_to_probes_without_certificates(server: Server, become: Become) -> None:
    become(None)
    assert await health_of(server.health_address) == health_pb2.HealthCheckResponse.SERVING


async def test_renewed_certificates_are_used_without_a_restart(server: Server, member: Path, become: Become) -> None:
    assert await health_of(server.address) == health_pb2.HealthCheckResponse.SERVING
    write(member, trustme.CA(), "127.0.0.1")
    assert await health_of(server.address) == health_pb2.HealthCheckResponse.SERVING


async def test_the_previous_files_are_used_while_files_are_being_replaced(server: Server, member: Path) -> None:
    key = (member / "tls.key").read_bytes()
    channel_side = tls.identity_for("h:1")
    assert channel_side is not None
    credentials = channel_side.of_channel()
    (member / "tls.key").write_bytes(key[:10])
    async with grpc.aio.secure_channel(server.address, credentials) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        answer = await rpc.call(check, health_pb2.HealthCheckRequest(), deadline_seconds=5.0)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        ("missing", FailedPrecondition, r"TLS: .*tls\.key: No such file or directory; check PODRACE_TLS_CERTIF"),
        ("other key", FailedPrecondition, r"TLS: .*tls\.crt, .*tls\.key, .*ca\.crt: .*KEY_VALUES_MISMATCH.*; check"),
        ("not PEM", FailedPrecondition, r"TLS: .*; check PODRACE_TLS_CERTIFICATE_FILE"),
        ("unset", InvalidArgument, r"PODRACE_TLS_KEY_FILE: missing; set it together with PODRACE_TLS_CERTIFICATE_FILE"),
    ],
)
async def test_unusable_files_are_reported_before_a_connection_is_made(
    member: Path, become: Become, monkeypatch: pytest.MonkeyPatch, damage: str, error: type[PodraceError], message: str
) -> None:
    become(member)
    if damage == "missing":
        (member / "tls.key").unlink()
    elif damage == "other key":
        trustme.CA().issue_cert("x").private_key_pem.write_to_path(member / "tls.key")
    elif damage == "not PEM":
        (member / "ca.crt").write_text("no certificate")
    else:
        monkeypatch.delenv(tls.KEY)
    with pytest.raises(error, match=message) as refused:
        rpc.connect("127.0.0.1:1")
    assert "\n" not in refused.value.message
    with pytest.raises(error, match=message):
        await Server.start(ServerConfig(), [])
