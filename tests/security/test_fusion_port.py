"""The port that a running leader with TLS opens for the followers of its pod on other hosts.

All pods have certificates of one authority with the same role. So the key of the pod decides who joins its fusion
rounds.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from google.protobuf import message_factory
from test_method_matrix import MATRIX, POD, SERVICES
from test_one_machine import SECONDS, free_port
from test_several_machines import Network

from podrace import rpc, tls
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.tokens import claims_of

pytestmark = pytest.mark.e2e
KEY = "the key that the hosts of this pod share"
POD_SERVICES = ("LearnerService", "WorkerService", "EvaluatorService", "TensorService", "TransferService")
METHODS = [(service, method) for service in POD_SERVICES for method in MATRIX[service]]
LATER = 4_000_000_000.0


class Leader:
    """A running leader of a pod on two hosts, which waits for its orchestrator."""

    def __init__(self, network: Network, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._key = MeshKey.load_or_make(network.certificates.path / "orchestrator/mesh.key")

    def tokens(self) -> dict[str, str]:
        """Tokens of all roles, and of this pod; none is the key."""
        claims = {
            role: claims_of("pod/spied" if role in POD else role, {number}, expire_time=LATER)
            for role, number in ROLES_BY_NAME.items()
        }
        return {"none": "", "guess": KEY[:-1], **{role: self._key.sign(each) for role, each in claims.items()}}

    async def answer(self, service: str, method: str, token: str) -> grpc.StatusCode:
        described = SERVICES[service][0].methods_by_name[method]
        request = message_factory.GetMessageClass(described.input_type)()
        many = ("stream" if each else "unary" for each in (described.client_streaming, described.server_streaming))
        async with rpc.connect(self.address, token=lambda: token) as channel:
            call = getattr(channel, "_".join(many))(
                f"/{described.containing_service.full_name}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=message_factory.GetMessageClass(described.output_type).FromString,
            )(iter([request]) if described.client_streaming else request, timeout=SECONDS)
            try:
                await (call.read() if described.server_streaming else call)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        network = Network(folder, stack)
        settings = {
            "pod_id": "spied",
            "orchestrator": f"unix:{folder}/o.sock",
            "leaderboard": f"unix:{folder}/l.sock",
            "store": f"folder://{folder}/store",
            "folder": folder / "pod",
            "plane_folder": folder / "memory",
            "layout": "separate",
            "learners": 2,
            "hosts": 2,
            "host": "127.0.0.1",
            "head": f"127.0.0.1:{port}",
            "key": KEY,
            "orphan_seconds": 600,
        }
        variables = {f"PODRACE_AGENTPOD__{key.upper()}": str(value) for key, value in settings.items()}
        certificate = network.environment("pod-role")
        command = [sys.executable, "-m", "agentpod", "learner"]
        process = subprocess.Popen(command, env=os.environ | variables | certificate)
        stack.callback(process.wait, SECONDS)
        stack.callback(process.send_signal, signal.SIGKILL)
        for variable, file in certificate.items():
            monkeypatch.setenv(variable, file)
        monkeypatch.setenv(tls.SERVER_NAME, "spied-0.podrace-agentpod")
        yield Leader(network, port)


async def test_only_holders_of_the_pods_key_are_answered_by_the_leader_of_several_hosts(leader: Leader) -> None:
    await rpc.wait_until_serving(leader.address, deadline_seconds=180.0)
    served = {"LearnerService"}
    tokens = leader.tokens()
    cells = [(service, method, who) for service, method in METHODS if service in served for who in tokens]
    found = await asyncio.gather(*(leader.answer(service, method, tokens[who]) for service, method, who in cells))
    expected = grpc.StatusCode.UNAUTHENTICATED
    assert {cell: code for cell, code in zip(cells, found, strict=True) if code != expected} == {}

    # With the key, followers reach what they need; tensors and the other roles are not served to other hosts at all.
    answers = {(service, method): await leader.answer(service, method, KEY) for service, method in METHODS}
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    for (service, method), code in answers.items():
        if service in served:
            assert code not in {*refused, grpc.StatusCode.UNIMPLEMENTED}, (method, code)
        else:
            assert code == grpc.StatusCode.UNIMPLEMENTED, (service, method, code)
