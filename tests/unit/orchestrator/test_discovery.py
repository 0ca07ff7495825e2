"""DiscoveryService on a live server, asked by the client and by the command."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.config import Config
from orchestrator.discovery import with_discovery
from podrace import __version__, rpc
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


async def test_the_lists_of_a_server_are_those_of_its_catalog(address: str) -> None:
    assert await discovery.list_algorithms(address) == catalog_messages.list_algorithms()
    assert await discovery.list_simulators(address) == catalog_messages.list_simulators()
    assert await discovery.list_strategies(address) == catalog_messages.list_strategies()
    assert await discovery.list_event_kinds(address) == catalog_messages.list_event_kinds()
