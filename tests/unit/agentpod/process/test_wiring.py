"""A process of a pod releases its resources when it exits."""

import gc
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentpod.process.wiring import _tensor_services
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.remote import GrpcPlane
from podrace.tensor_transport.transfer import GroupPlane, TransferServicer


async def test_groups_and_their_store_are_released_with_the_pod(tmp_path: Path) -> None:
    planes = [GrpcPlane("unix:a"), GroupPlane("unix:b", timeout_seconds=5.0), MemoryPlane()]
    with ExitStack() as resources:
        services = _tensor_services(planes, resources)
        assert [service.descriptor.name for service in services] == ["TensorService", "TransferService"]
        servicer = services[1].servicer
        assert isinstance(servicer, TransferServicer)
        answer = await servicer.JoinTransfer(pb.JoinTransferRequest(peer="worker-0"), None)
        peer = GroupPlane(peer="worker-0", timeout_seconds=5.0)
        joined = await peer.join(answer.store_address, answer.prefix, 1)
        host, _, port = answer.store_address.rpartition(":")
        socket.create_connection((host, int(port)), 1).close()
    joined.abort()
    del joined
    gc.collect()
    assert not servicer._links
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 1).close()
    for plane in (*planes, peer):
        plane.close()
