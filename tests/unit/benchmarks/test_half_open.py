"""The benchmark of half-open connections breaks the connection of a real lease over TLS, and sees it renewed."""

from pathlib import Path
from typing import Any

import pytest

from agentpod.learner import lease
from benchmarks.connections import half_open
from benchmarks.connections.fault_proxy import FaultProxy
from podrace import tls
from podrace.rpc import channel as channel_settings
from podrace.rpc import server as server_settings

LEASE_SECONDS = 0.3


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes as frequent as a test needs, and no certificates of another mesh."""
    monkeypatch.setattr(channel_settings, "KEEPALIVE_SECONDS", 0.5)
    monkeypatch.setattr(server_settings, "SHORTEST_PING_MILLISECONDS", 100)
    for name in (tls.CERTIFICATE, tls.KEY, tls.AUTHORITY, tls.SERVER_NAME):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.long
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_lease_is_renewed_over_a_new_connection(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encrypted: bool
) -> None:
    proxies: list[FaultProxy] = []
    secured: list[bool] = []

    class Observed(FaultProxy):
        def half_open(self) -> None:
            proxies.append(self)
            super().half_open()

    renew = half_open._Orchestrator.RenewAssignment

    async def observed(self: Any, request: Any, context: Any) -> Any:
        secured.append(context.auth_context().get("transport_security_type") == [b"ssl"])
        return await renew(self, request, context)

    monkeypatch.setattr(half_open, "FaultProxy", Observed)
    monkeypatch.setattr(half_open._Orchestrator, "RenewAssignment", observed)
    for name, value in half_open.make_certificates(tmp_path / "certs").items() if encrypted else ():
        monkeypatch.setenv(name, value)
    (seconds,) = await half_open.measure(1, LEASE_SECONDS)
    assert 0.0 < seconds < lease.RENEW_DEADLINE_SECONDS
    assert [proxy.accepted >= 2 for proxy in proxies] == [True]
    assert set(secured) == {encrypted}
