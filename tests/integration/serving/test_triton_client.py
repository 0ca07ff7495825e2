"""Triton's client, in a separate environment, acts over gRPC and HTTP as it does with a Triton server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from client_environments import output_of, python_with
from policy_world import PolicyWorld, name, recurrent_actions

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("triton_client.py")
REQUIREMENT = "tritonclient[grpc,http]==2.73.0"


@pytest.fixture
async def python(tmp_path: Path) -> Path:
    """Python with Triton's client; PODRACE_TRITON_PYTHON names one that exists."""
    return await python_with(REQUIREMENT, "PODRACE_TRITON_PYTHON", tmp_path / "triton")


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[PolicyWorld]:
    made = await PolicyWorld.start(tmp_path, "recurrent")
    yield made
    await made.close()


async def test_triton_clients_get_the_actions_of_the_policy_with_and_without_sequences(world, python):
    code, printed, log = await output_of(python, PROGRAM, world.server.address, world.rest.address)
    assert code == 0, log
    steps = recurrent_actions(3)
    answers = json.loads(printed)
    for protocol, answer in answers.items():
        assert answer["actions"] == (steps if "sequence" in protocol else [steps[0]] * 3), protocol
        assert answer["version"] == name(1)
        assert "the only one is 'policy'" in answer["error"]
    assert set(answers) == {"grpc", "http", "grpc sequence", "http sequence"}
