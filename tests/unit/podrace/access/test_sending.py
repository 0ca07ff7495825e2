"""Tests which addresses count as this machine, and to which of them a token is sent."""

import socket
from pathlib import Path

import pytest

from podrace.access import token_file
from podrace.access.credentials import NoListener
from podrace.access.sending import is_loopback
from podrace.access.token_file import operator_token


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:50051", True),
        ("localhost:50051", True),
        ("10.0.0.7:50051", False),
        ("orchestrator:50051", False),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", True),
        ("ipv4:127.0.0.1:1,10.0.0.7:2", False),
        ("ipv6:[::1]:1,[::1]:2", True),
        ("ipv6:[::1]:1,[fd00::1]:2", False),
    ],
)
def test_a_list_is_local_if_each_of_its_addresses_is(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


def test_the_default_token_is_sent_to_replicas_if_all_listeners_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    path.chmod(0o600)
    monkeypatch.setattr(token_file, "token_path", lambda environ: path)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as absent:
        absent.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (first, absent)]
        source = operator_token(f"ipv4:127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", {})
        assert source
        assert source() == "secret"
        owners = {ports[0]: frozenset({0}), ports[1]: frozenset({4_000_000})}
        monkeypatch.setattr(token_file, "listener_owners", owners.__getitem__)
        assert source() == ""


def test_without_a_listener_it_is_unknown_whether_the_default_token_may_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "token_path", lambda environ: tmp_path / "token")
    with socket.socket() as absent:
        absent.bind(("127.0.0.1", 0))
        source = operator_token(f"127.0.0.1:{absent.getsockname()[1]}", {})
        assert source
        with pytest.raises(NoListener, match=r"nothing listens at 127.0.0.1:\d+: start the service"):
            source()
