"""The host of evaluation functions: each function is reached over sockets of its own."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentpod.config import PodConfig
from agentpod.roles import evaluation_host
from agentpod.roles.evaluation_host import KIND, EvaluationHost, host_address
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import PodraceError, Unavailable
from podrace.limits.config import EVERYTHING
from podrace.plugins.host import NamedPlugin
from podrace.plugins.hosted import HostedConnection

LONGEST_NAME = "worker-100.sock"
"""The launcher checks that the path of this socket is short enough."""


class NoProcess:
    """A connection to a child process that cannot be started, and remembers where it would have served."""

    prefixes: list[Path]

    def __init__(self, command: Any, settings: Any, *, socket_prefix: Path, **_: Any) -> None:
        self.prefixes.append(socket_prefix)

    async def ready(self, seconds: float) -> Any:
        raise Unavailable("no process")

    async def failed(self, error: PodraceError) -> str:
        return error.message

    async def close(self) -> None:
        pass


@pytest.fixture
async def config(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodConfig]:
    """A pod whose host serves."""
    monkeypatch.setattr(evaluation_host, "ChildConnection", NoProcess)
    monkeypatch.setattr(NoProcess, "prefixes", [], raising=False)
    # Directly under /tmp, because Linux limits socket paths to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        made = PodConfig("test-pod", "unix:o", "unix:l", "folder:///s", Path(name), allow=EVERYTHING, isolated=True)
        host = await EvaluationHost.start(made)
        yield made
        await host.close()


async def call(config: PodConfig, plugin: NamedPlugin) -> None:
    connection = HostedConnection(host_address(config), plugin)
    stub: Any = pb_grpc.EvaluatorServiceStub(await connection.ready(10.0))
    with pytest.raises(Unavailable, match="no process"):
        await rpc.call(stub.CloseEvaluator, pb.CloseEvaluatorRequest(session="s"), deadline_seconds=10.0)
    await connection.close()


async def test_functions_of_one_host_never_share_a_socket(config: PodConfig) -> None:
    for address, on_gpu in (("python:m:f", False), ("python:m:g", False), ("python:m:f", True), ("python:m:f", False)):
        await call(config, NamedPlugin(address, KIND, on_gpu))
    assert len(NoProcess.prefixes) == 3, "the last call uses the connection of the first"
    assert len(set(NoProcess.prefixes)) == 3
    for prefix in NoProcess.prefixes:
        assert prefix.parent == config.code_folder
        assert len(f"{prefix.name}-1.sock") <= len(LONGEST_NAME)
