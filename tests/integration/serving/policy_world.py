"""A live policy server on a port, with a folder as its source, and exported policies of different seeds."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from policies import published

from podrace import rpc
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.principal import Principal, roles_with_included
from podrace.access.v1 import access_pb2
from podrace.policy.loading import onnx_file
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc
from podrace.serving.engine import EngineLimits, PolicyEngine
from podrace.serving.follower import SourceFollower
from podrace.serving.inference_servicer import inference_service
from podrace.serving.policy_version import PolicyVersion
from podrace.serving.rest import RestServer
from podrace.serving.servicer import policy_service
from podrace.serving.sources import FolderSource


def model(seed: int, case: str = "logits") -> bytes:
    """An exported policy with three observations."""
    return onnx_file([published(case, seed).checkpoint])


def name(seed: int) -> str:
    """Version of such a policy."""
    return f"{seed:064x}"


def observation(rows: int = 1, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


class NamedCaller:
    """Gives the caller of a token the role operator and the name of the token."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        return Principal(credentials.token or "no token", roles_with_included([access_pb2.ROLE_OPERATOR]))


@dataclass
class PolicyWorld:
    folder: Path
    engine: PolicyEngine
    follower: SourceFollower
    server: rpc.Server
    rest: RestServer
    channels: list[Any]

    @classmethod
    async def start(cls, folder: Path, case: str = "logits", clock: Any = None) -> "PolicyWorld":
        engine = PolicyEngine(EngineLimits(), clock=clock or time.monotonic)
        (folder / "policy.onnx").write_bytes(model(1, case))
        source = FolderSource(folder)
        server = await rpc.Server.start(
            rpc.ServerConfig(listen="127.0.0.1:0", grace_seconds=1.0),
            [policy_service(engine, source), inference_service(engine)],
            guard=Guard([NamedCaller()]),
        )
        rest = await RestServer.start("127.0.0.1:0", engine, Guard([NamedCaller()]))
        world = cls(folder, engine, SourceFollower(engine, source), server, rest, [])
        await world.follower.poll()
        return world

    def stub(self, caller: str = "") -> Any:
        """A client; a caller has its own sessions."""
        channel = rpc.connect(self.server.address, pb.DESCRIPTOR, token=(lambda: caller) if caller else None)
        self.channels.append(channel)
        return pb_grpc.PolicyServiceStub(channel)

    def export(self, seed: int, case: str = "logits") -> None:
        """Replaces the exported policy as a whole."""
        incoming = self.folder / "incoming"
        incoming.write_bytes(model(seed, case))
        incoming.replace(self.folder / "policy.onnx")

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()
        await self.server.drain()
        await self.rest.close()
        await self.engine.close()


async def ask(method: Any, request: Any) -> Any:
    return await rpc.call(method, request, deadline_seconds=10.0)


async def act(stub: Any, seen: Any, **fields: Any) -> pb.ActResponse:
    answer: pb.ActResponse = await ask(stub.Act, pb.ActRequest(observations=seen.tobytes(), **fields))
    return answer


def recurrent_actions(steps: int) -> list[Any]:
    """The actions of a recurrent policy, without a server, on the observations of the clients' programs."""
    policy, seen = PolicyVersion(model(1, "recurrent")), np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
    state, actions = np.zeros((2, 5), np.float32), []
    for _ in range(steps):
        found = policy.compute(seen, state, outputs=False)
        state = found["next_state"]
        actions.append(found["action"].tolist())
    return actions
