"""A policy server with the certificates of `podrace certs`: gRPC with certificates and tokens, HTTP with tokens."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from policy_world import act, model, name, observation

from podrace import rpc, tls
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.service_access import AccessConfig, ServiceAccess
from podrace.access.tokens import claims_of
from podrace.access.v1 import access_pb2
from podrace.certificates.folder import CertificateFolder
from podrace.certificates.names import SpiffeName
from podrace.client.policy_server import PolicyServerClient
from podrace.errors import PermissionDenied
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc
from podrace.serving.engine import EngineLimits, PolicyEngine
from podrace.serving.follower import SourceFollower
from podrace.serving.inference_servicer import inference_service
from podrace.serving.rest import RestServer
from podrace.serving.servicer import policy_service
from podrace.serving.sources import FolderSource

YEAR = timedelta(days=365)
INFER = {"inputs": [{"name": "observation", "datatype": "FP32", "shape": [1, 3], "data": [0.0, 0.5, 1.0]}]}


@dataclass
class SecuredServer:
    """A policy server, the certificates, and what makes this process the holder of one."""

    certificates: CertificateFolder
    server: rpc.Server
    rest: RestServer
    become: Any

    def token(self, role: str) -> str:
        key = MeshKey.load_or_make(self.certificates.path / "orchestrator/mesh.key")
        return key.sign(claims_of("alice", {ROLES_BY_NAME[role]}, expire_time=time.time() + 600.0))

    async def over_http(self, method: str, path: str, token: str = "", **arguments: Any) -> tuple[int, Any]:
        """Returns the status and the answer."""
        context = ssl.create_default_context(cafile=str(self.certificates.path / "authority/ca.crt"))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession() as session:
            url = f"https://{self.rest.address}{path}"
            async with session.request(method, url, ssl=context, headers=headers, **arguments) as answer:
                return answer.status, await answer.json()

    async def presented(self) -> str:
        """Returns the certificate that a new HTTP connection gets."""
        host, _, port = self.rest.address.rpartition(":")
        return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


@pytest.fixture
async def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SecuredServer]:
    now = datetime.now(UTC)
    folder = CertificateFolder.create(tmp_path / "certs", now)
    for holder in (SpiffeName("orchestrator"), SpiffeName("policy-server"), SpiffeName("operator", "root")):
        folder.add(holder, ["127.0.0.1"], now, YEAR)
    folder.make_mesh_key()

    def become(path: str) -> None:
        for variable, file in ((tls.CERTIFICATE, "tls.crt"), (tls.KEY, "tls.key")):
            monkeypatch.setenv(variable, str(folder.path / path / file) if path else "")
        monkeypatch.setenv(tls.AUTHORITY, str(folder.path / "authority/ca.crt"))

    # Clients have certificates and no token, whatever tests before this one left there.
    monkeypatch.setenv("PODRACE_TOKEN_FILE", str(tmp_path / "none"))
    become("policy-server")
    engine, source = PolicyEngine(EngineLimits(), clock=time.monotonic), FolderSource(tmp_path)
    (tmp_path / "policy.onnx").write_bytes(model(1))
    await SourceFollower(engine, source).poll()
    keys = (str(folder.path / "policy-server/mesh.pub"),)
    config = AccessConfig(public_keys=keys, token_file=str(tmp_path / "token"))
    access = ServiceAccess.open(config, access_pb2.ROLE_POLICY_SERVER, "127.0.0.1:0")
    guard = Guard(access.authenticators, audit=access.audit)
    listen = rpc.ServerConfig(listen="127.0.0.1:0", token_listen="127.0.0.1:0", grace_seconds=1.0)
    server = await rpc.Server.start(listen, [policy_service(engine, source), inference_service(engine)], guard=guard)
    rest = await RestServer.start("127.0.0.1:0", engine, guard)
    yield SecuredServer(folder, server, rest, become)
    await server.drain()
    await rest.close()
    await engine.close()


async def test_http_needs_tls_and_a_token_except_for_health(secured):
    status, answer = await secured.over_http("GET", "/v2/health/ready")
    assert (status, answer) == (200, {"ready": True})
    path = "/v2/models/policy/infer"
    assert (await secured.over_http("POST", path, json=INFER))[0] == 401
    assert (await secured.over_http("POST", path, "wrong", json=INFER))[0] == 401
    status, answer = await secured.over_http("POST", path, secured.token("viewer"), json=INFER)
    assert (status, answer["model_version"]) == (200, name(1))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://{secured.rest.address}/v2/health/live")
        with pytest.raises(aiohttp.ClientSSLError):
            await session.get(f"https://{secured.rest.address}/v2/health/live")


async def test_a_renewed_certificate_is_presented_to_the_next_http_connection(secured):
    before = await secured.presented()
    assert await secured.presented() == before
    secured.certificates.renew("policy-server", datetime.now(UTC))
    after = await secured.presented()
    assert after == (secured.certificates.path / "policy-server/tls.crt").read_text()
    assert after != before
    assert (await secured.over_http("GET", "/v2/health/live"))[0] == 200


async def test_a_certificate_or_a_token_says_who_acts_and_who_changes_versions(secured, monkeypatch):
    secured.become("operator/root")
    async with PolicyServerClient(secured.server.address) as server:
        assert (await server.pin(name(1))).pinned
    secured.become("")
    for role, may_change in (("viewer", False), ("operator", True)):
        monkeypatch.setenv("PODRACE_TOKEN", secured.token(role))
        address = secured.server.token_address
        async with rpc.connect(address, pb.DESCRIPTOR, token=lambda role=role: secured.token(role)) as channel:
            assert (await act(pb_grpc.PolicyServiceStub(channel), observation())).version == name(1)
        async with PolicyServerClient(address) as server:
            if may_change:
                assert not (await server.follow()).pinned
            else:
                with pytest.raises(PermissionDenied):
                    await server.follow()
                assert (await server.serving()).pinned
