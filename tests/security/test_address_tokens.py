"""Services at addresses of specifications get tokens of their own audience, and simulator services demand them.

Before, `python -m simulators` answered every caller, and no token reached a service, so that it could not know its
callers.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from podrace import rpc
from podrace.access.address_tokens import audiences_of, named_token, own_token, signed_token
from podrace.access.guard import Guard
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.service_access import AccessConfig, ServiceAccess
from podrace.access.tokens import AUDIENCE, pod_token
from podrace.access.v1 import access_pb2
from podrace.errors import InvalidArgument, PermissionDenied, PodraceError, Unauthenticated
from podrace.limits.config import Allowed
from podrace.limits.services import service_token, simulator_token
from podrace.simulator.v1 import simulator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2_grpc as pb_grpc
from simulators import make, remote
from simulators.config import Limits
from simulators.service import SimulatorServicer, services

FAR_FUTURE = 4e9


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key of this user."""
    monkeypatch.setenv("PODRACE_TOKEN_FILE", str(tmp_path / "token"))
    return tmp_path / "mesh.key"


@pytest.fixture
async def service(key_file: Path) -> AsyncIterator[str]:
    """The address of a simulator service, wired as `python -m simulators` is."""
    audiences: list[str] = []
    access = ServiceAccess.open(AccessConfig(), access_pb2.ROLE_PLUGIN, "127.0.0.1:0", audiences=audiences)
    servicer = SimulatorServicer(Limits())
    config = rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await rpc.Server.start(config, services(servicer), guard=Guard(access.authenticators))
    audiences += audiences_of(server.address)
    yield server.address
    await server.drain()


async def describe(address: str, token: str) -> pb.GetSimulatorResponse:
    async with rpc.connect(address, token=lambda: token) as channel:
        stub = pb_grpc.SimulatorServiceStub(channel)  # type: ignore[no-untyped-call]
        found: pb.GetSimulatorResponse = await rpc.call(
            stub.GetSimulator, pb.GetSimulatorRequest(id="cartpole"), deadline_seconds=30.0
        )
        return found


async def test_a_simulator_service_answers_holders_of_a_token_for_its_address_only(
    service: str, key_file: Path
) -> None:
    key = MeshKey.load_or_make(key_file)
    port = service.rpartition(":")[2]
    for name in (service, f"localhost:{port}"):
        assert (await describe(service, own_token(key, name))).HasField("observation_space")
    refused = {
        "none": "",
        "of another service": own_token(key, "127.0.0.1:1"),
        "of a pod, for the mesh": pod_token(key, "p", "t", FAR_FUTURE),
        "of another key": own_token(MeshKey(make_pem()), service),
        "expired": own_token(key, service, now=0.0),
    }
    for kind, token in refused.items():
        with pytest.raises((Unauthenticated, PermissionDenied)):
            print(kind, await describe(service, token))


async def test_an_environment_at_a_service_of_this_machine_opens_without_configuration(
    service: str, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = Allowed(services=(service,))

    def count() -> int:
        simulator = make(f"grpc://{service}", 3, {"id": "cartpole"}, allowed=allowed)
        simulator.reset(0)
        simulator.close()
        return simulator.count

    assert await asyncio.to_thread(count) == 3
    # Another user of this machine has no key that this service knows.
    monkeypatch.setattr(remote, "simulator_token", lambda *_: None)
    with pytest.raises(PodraceError, match="token"):
        await asyncio.to_thread(count)


async def test_a_service_never_gets_a_token_that_the_mesh_accepts(tmp_path: Path, key_file: Path) -> None:
    """A service that keeps what it is sent tries it at the mesh."""
    kept: list[str] = []

    class Keeping(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):  # type: ignore[no-untyped-def]
            kept.extend(value for name, value in details.invocation_metadata if name == "authorization")
            return await continuation(details)

    MeshKey.load_or_make(key_file)
    server = grpc.aio.server(interceptors=[Keeping()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    with pytest.raises(PodraceError):
        await asyncio.to_thread(make, f"grpc://{address}", 1, {"id": "cartpole"}, allowed=Allowed(services=(address,)))
    await server.stop(None)
    (authorization,) = kept
    token = authorization.removeprefix("Bearer ")
    public = MeshKey.load_or_make(key_file).public
    assert public.verify(token, audience=f"grpc://{address}")["aud"] == f"grpc://{address}"
    with pytest.raises(Unauthenticated, match="Audience doesn't match"):
        public.verify(token, audience=AUDIENCE)


def test_the_operator_names_files_with_tokens_of_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, file = secrets.token_hex(8), tmp_path / "service.token"
    file.write_text(f"{secret}\n")
    file.chmod(0o600)
    allowed = Allowed(service_tokens=(f"127.0.0.1:50070={file}", f"elsewhere:50070={file}"))
    source = service_token("127.0.0.1:50070", allowed)
    assert source is not None
    assert source() == secret
    monkeypatch.setenv("PODRACE_TOKEN_FILE", str(tmp_path / "no/token"))
    assert service_token("127.0.0.1:50071", allowed) is None
    assert simulator_token("127.0.0.1:50071", allowed) is None
    # Without TLS no token leaves this machine.
    assert service_token("elsewhere:50070", allowed) is None
    file.chmod(0o644)
    with pytest.raises(PodraceError, match="other users can read it"):
        source()
    with pytest.raises(InvalidArgument, match=r"allow\.service_tokens = '127.0.0.1:50070'"):
        Allowed(service_tokens=("127.0.0.1:50070",))


def test_on_unix_sockets_and_other_machines_no_token_is_signed(key_file: Path) -> None:
    MeshKey.load_or_make(key_file)
    for target in ("unix:/s", "elsewhere:1"):
        assert signed_token(target) is None
        assert named_token(target, {}) is None
    assert audiences_of("unix:/s") == ["grpc://unix:/s"]
    assert audiences_of("elsewhere:1") == ["grpc://elsewhere:1"]
    assert audiences_of("127.0.0.1:5") == ["grpc://127.0.0.1:5", "grpc://[::1]:5", "grpc://localhost:5"]
