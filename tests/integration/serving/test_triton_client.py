"""Triton's client, in a separate environment, acts over gRPC and HTTP as it does with a Triton server."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from policy_world import PolicyWorld, model, name

from podrace.serving.policy_version import PolicyVersion

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("triton_client.py")
REQUIREMENT = "tritonclient[grpc,http]==2.73.0"
SECONDS = 300.0


async def output_of(*command: str | Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    printed, log = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode or 0, printed.decode(), log.decode()


@pytest.fixture
async def python(tmp_path: Path) -> Path:
    """Python with Triton's client; PODRACE_TRITON_PYTHON names one that exists."""
    if found := os.environ.get("PODRACE_TRITON_PYTHON"):
        return Path(found)
    folder = tmp_path / "triton"
    await output_of(sys.executable, "-m", "venv", folder)
    code, _, log = await output_of(folder / "bin/python", "-m", "pip", "install", "--quiet", REQUIREMENT)
    if code:
        pytest.skip(f"{REQUIREMENT} cannot be installed here: {log.strip().splitlines()[-1]}")
    return folder / "bin/python"


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[PolicyWorld]:
    made = await PolicyWorld.start(tmp_path, "recurrent")
    yield made
    await made.close()


async def test_triton_clients_get_the_actions_of_the_policy_with_and_without_sequences(world, python):
    code, printed, log = await output_of(python, PROGRAM, world.server.address, world.rest.address)
    assert code == 0, log
    policy, seen = PolicyVersion(model(1, "recurrent")), np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
    state, steps = np.zeros((2, 5), np.float32), []
    for _ in range(3):
        found = policy.compute(seen, state, outputs=False)
        state = found["next_state"]
        steps.append(found["action"].tolist())
    answers = json.loads(printed)
    for protocol, answer in answers.items():
        assert answer["actions"] == (steps if "sequence" in protocol else [steps[0]] * 3), protocol
        assert answer["version"] == name(1)
        assert "the only one is 'policy'" in answer["error"]
    assert set(answers) == {"grpc", "http", "grpc sequence", "http sequence"}
