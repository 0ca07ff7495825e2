"""A server without TLS listens only where no other machine reaches it, unless that is allowed."""

import socket
from pathlib import Path

import pytest

from podrace import tls
from podrace.errors import FailedPrecondition
from podrace.rpc import Server, ServerConfig, is_local


@pytest.fixture(autouse=True)
def no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (tls.CERTIFICATE, tls.KEY, tls.AUTHORITY):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0", "LocalHost:5", "unix:/run/s", "unix:s"])
def test_loopback_and_unix_sockets_are_local(listen: str) -> None:
    assert is_local(listen)


@pytest.mark.parametrize(
    "listen",
    ["0.0.0.0:0", "[::]:0", ":50051", "192.0.2.1:50051", "no.such.name.invalid:1", "unix-abstract:x", "vsock:1:2", ""],
)
def test_everything_else_is_reached_by_other_machines(listen: str) -> None:
    assert not is_local(listen)


def test_a_name_is_not_local_even_if_it_resolves_to_loopback_now(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: found)
    assert not is_local("machine:50051")


async def test_a_server_on_a_network_address_without_tls_is_refused_in_one_line() -> None:
    with pytest.raises(
        FailedPrecondition, match=r"0\.0\.0\.0:0 without TLS.*podrace certs make.*--insecure"
    ) as refused:
        await Server.start(ServerConfig(listen="0.0.0.0:0"), [])
    assert "\n" not in refused.value.message


async def test_a_server_that_may_be_insecure_serves_there(tmp_path: Path) -> None:
    server = await Server.start(ServerConfig(listen="0.0.0.0:0", insecure=True, grace_seconds=0.0), [])
    await server.drain()
