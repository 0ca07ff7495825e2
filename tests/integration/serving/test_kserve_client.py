"""KServe's Python client, in a separate environment, acts over gRPC and HTTP as with any server of the protocol."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from client_environments import output_of, python_with
from policy_world import PolicyWorld, name, recurrent_actions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("kserve_client.py")
REQUIREMENT = "kserve==0.21.0"


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[PolicyWorld]:
    made = await PolicyWorld.start(tmp_path, "recurrent")
    yield made
    await made.close()


async def test_kserve_clients_get_the_actions_of_the_policy_with_and_without_sequences(world, tmp_path):
    python = await python_with(REQUIREMENT, "PODRACE_KSERVE_PYTHON", tmp_path / "kserve")
    code, printed, log = await output_of(python, PROGRAM, world.server.address, world.rest.address)
    assert code == 0, log
    steps = recurrent_actions(3)
    found_by_client = json.loads(printed.strip().splitlines()[-1])
    assert found_by_client["ready"] == [True] * 6
    for protocol, answer in found_by_client["answers"].items():
        assert answer["actions"] == (steps if "sequence" in protocol else [steps[0]] * 3), protocol
        # KServe's HTTP client drops the version when it decodes an answer.
        assert answer["version"] == (name(1) if protocol.startswith("grpc") else None), protocol
    assert set(found_by_client["answers"]) == {"grpc", "grpc sequence", "http", "http binary", "http sequence"}
