"""The plane `grpc` from a second language: Node.js, with nothing but the .proto files."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import json_format

from podrace.rpc import Server, ServerConfig, Service
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.remote import GrpcPlane, TensorServicer

REPOSITORY = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "node"
SPECS = [
    TensorSpec(name="observation", data_type=pb.DATA_TYPE_FLOAT32, shape=[7, 3, 5], layout_version=1),
    TensorSpec(name="reward", data_type=pb.DATA_TYPE_FLOAT32, shape=[600_000], layout_version=1),
]


@pytest.fixture(scope="module")
def node(node_program: Callable[[Path], Path]) -> Path:
    """A folder with the program and gRPC for Node.js."""
    return node_program(SOURCES)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[GrpcPlane]:
    with tempfile.TemporaryDirectory(prefix="pr") as folder:
        plane = GrpcPlane(f"unix:{folder}/t.sock")
        service = Service(
            pb.DESCRIPTOR.services_by_name["TensorService"],
            pb_grpc.add_TensorServiceServicer_to_server,
            TensorServicer(plane),
        )
        server = await Server.start(ServerConfig(listen=f"unix:{folder}/t.sock", grace_seconds=0.0), [service])
        yield plane
        plane.close()
        await server.drain()


async def run_third_party(node: Path, refs: list[pb.TensorRef]) -> tuple[int, dict[str, Any], str]:
    address = refs[0].plane_uri.removeprefix("grpc:").rpartition("/")[0]
    messages = [json_format.MessageToDict(ref, preserving_proto_field_name=True) for ref in refs]
    for message in messages:
        # JSON has 64-bit integers as text, and leaves nothing else to know.
        message["spec"]["shape"] = [int(length) for length in message["spec"]["shape"]]
    process = await asyncio.create_subprocess_exec(
        "node",
        "third_party.js",
        str(REPOSITORY / "protos"),
        address,
        json.dumps(messages),
        cwd=node,
        env={"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, json.loads(out) if out else {}, err.decode()


async def test_a_third_party_reads_and_writes_tensors_of_a_learner(owner: GrpcPlane, node: Path) -> None:
    region = owner.create("slot", SPECS)
    region["observation"].copy_(torch.arange(105.0).view(7, 3, 5))
    region["reward"].copy_(torch.arange(600_000.0) % 7)
    before = {name: tensor.clone() for name, tensor in region.items()}
    code, said, err = await run_third_party(node, region.refs())
    assert code == 0, err
    assert said["sums"] == {name: float(tensor.double().sum()) for name, tensor in before.items()}
    assert said["written"] == 4 * (15 + 1)
    assert torch.equal(region["observation"][0], 2 * before["observation"][0])
    assert torch.equal(region["observation"][1:], before["observation"][1:])
    assert torch.equal(region["reward"][1:], before["reward"][1:])


async def test_a_third_party_that_comes_too_late_gets_the_reason(owner: GrpcPlane, node: Path) -> None:
    region = owner.create("slot", SPECS)
    refs = region.refs()
    region.renew()
    code, _, err = await run_third_party(node, refs)
    assert code == 1
    assert err.startswith("9 ")
    assert "has generation 2, the reference to 'observation' has 1" in err
