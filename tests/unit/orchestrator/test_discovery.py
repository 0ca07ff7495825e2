"""DiscoveryService on a live server, asked by the client and by the command."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.config import Config
from orchestrator.discovery import describe_caller, with_discovery
from podrace import __version__, rpc
from podrace.access.authenticators.unix_socket import user_name
from podrace.access.principal import Principal
from podrace.access.v1 import access_pb2
from podrace.client import discovery
from podrace.discovery import catalog_messages


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    config = Config(server=rpc.ServerConfig(listen=f"unix:{tmp_path}/o", grace_seconds=0.0), start_pods=False)
    tmp_path.chmod(0o700)
    server = await rpc.Server.start(config.server, with_discovery(config, []))
    yield server.address
    await server.drain()


async def test_a_server_describes_itself(address: str) -> None:
    server = await discovery.get_server(address)
    assert server.version == __version__
    assert list(server.services) == ["podrace.discovery.v1.DiscoveryService"]
    assert "discovery" in server.features
    assert server.launcher == "process"
    assert not server.starts_pods
    assert server.limits.request_bytes == 4 << 20
    assert server.limits.page_entries == 1000
    assert server.limits.request_id_duration.seconds == 86_400
    assert abs(server.time.ToSeconds() - time.time()) < 60


async def test_a_caller_gets_its_name_and_its_roles(address: str) -> None:
    caller = await discovery.get_caller(address)
    assert caller.name == user_name()
    assert access_pb2.ROLE_OPERATOR in caller.roles
    assert not caller.HasField("expire_time"), "the rights of a user over its own socket do not expire"


def test_the_credentials_of_a_caller_are_described_and_nothing_else() -> None:
    alice = Principal(
        "alice", frozenset({access_pb2.ROLE_VIEWER}), namespace="lab", tournament_id="run-abc123", expire_time=1.5
    )
    found = describe_caller(alice)
    assert (found.name, found.namespace, found.tournament_id) == ("alice", "lab", "run-abc123")
    assert list(found.roles) == [access_pb2.ROLE_VIEWER]
    assert found.expire_time.ToMilliseconds() == 1500
    assert describe_caller(None) == type(found)()


async def test_the_lists_of_a_server_are_those_of_its_catalog(address: str) -> None:
    assert await discovery.list_algorithms(address) == catalog_messages.list_algorithms()
    assert await discovery.list_simulators(address) == catalog_messages.list_simulators()
    assert await discovery.list_strategies(address) == catalog_messages.list_strategies()
    assert await discovery.list_event_kinds(address) == catalog_messages.list_event_kinds()
