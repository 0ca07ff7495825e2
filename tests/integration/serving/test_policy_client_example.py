"""The example of a policy client in Python acts with what is served, from the installed contracts alone."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import contract_packages
import numpy as np
import pytest
from client_environments import python_with
from policy_world import PolicyWorld, model, name, observation, recurrent_actions

from podrace.serving.policy_version import PolicyVersion

REPOSITORY = Path(__file__).parents[3]
PROGRAM = REPOSITORY / "examples/python/policy_client.py"
SECONDS = 60.0
SEEN = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
"""The observations of `recurrent_actions`, of two environments."""


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[PolicyWorld]:
    made = await PolicyWorld.start(tmp_path, request.param)
    yield made
    await made.close()


async def printed(
    address: str, lines: str, python: str | Path = sys.executable, variables: dict[str, str] | None = None
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        python, PROGRAM, address, "a-token", env=variables,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await asyncio.wait_for(process.communicate(lines.encode()), SECONDS)
    return process.returncode or 0, out.decode(), error.decode()


def lines_of(rows: Any) -> str:
    return "".join(f"{json.dumps(row.tolist())}\n" for row in rows)


@pytest.mark.parametrize("world", ["logits", "gaussian"], indirect=True)
async def test_the_program_prints_the_actions_of_the_policy_that_is_served(world, request):
    case = request.node.callspec.params["world"]
    rows = observation(4)
    code, out, log = await printed(world.server.address, lines_of(rows))
    assert (code, log) == (0, f"acting with version {name(1)}\n")
    wanted = PolicyVersion(model(1, case)).compute(rows, None, outputs=False)["action"]
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == len(rows)
    assert np.allclose(np.ravel(found), wanted.ravel(), atol=1e-5)


@pytest.mark.parametrize("world", ["recurrent"], indirect=True)
async def test_lines_of_an_episode_share_the_recurrent_state_and_an_empty_line_begins_another(world):
    lane = 1
    code, out, log = await printed(world.server.address, lines_of([SEEN[lane]] * 3) + "\n" + lines_of([SEEN[lane]] * 3))
    assert code == 0, log
    wanted = [actions[lane] for actions in recurrent_actions(3)]
    assert [json.loads(line) for line in out.splitlines()] == wanted * 2


@pytest.mark.parametrize("world", ["logits"], indirect=True)
async def test_an_observation_that_does_not_fit_is_refused_in_one_line(world):
    code, out, log = await printed(world.server.address, "[1.0]\n")
    assert (code, out) == (1, "")
    assert log.splitlines()[1:] == ["policy_client.py: an observation of 1 numbers: the policy expects 3"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", ["logits"], indirect=True)
async def test_the_program_needs_nothing_but_the_installed_contracts(world, tmp_path):
    built = tmp_path / "built"
    built.mkdir()
    wheel = contract_packages.package(await asyncio.to_thread(contract_packages.build, built), ".whl")
    python = await python_with(str(wheel), "PODRACE_CONTRACTS_PYTHON", tmp_path / "environment")
    rows = observation(4)
    code, out, log = await printed(world.server.address, lines_of(rows), python, {})
    assert code == 0, log
    wanted = PolicyVersion(model(1)).compute(rows, None, outputs=False)["action"]
    assert [json.loads(line) for line in out.splitlines()] == wanted.tolist()
