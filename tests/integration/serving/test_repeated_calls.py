"""A policy server ends in the same state, and acts the same, if the calls of its clients are repeated and late.

RollBack and Act are late only, because their contracts exclude repeats.
"""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from lossy_mesh import Losses, LossyCalls
from policy_world import PolicyWorld, act, ask, name, observation

from podrace.client.policy_server import PolicyServerClient
from podrace.policy.v1 import policy_service_pb2 as pb

LOSSES = Losses(twice=0.5, late=0.3)
STEPS = 5


async def operated(world: PolicyWorld) -> list[Any]:
    """Operates a policy server as people do, and returns its answers."""
    answers: list[Any] = []
    async with PolicyServerClient(world.server.address) as server:
        for change in (
            lambda: server.pin(name(1)),
            server.follow,
            lambda: server.start_comparison(name(1), share=0.5),
            server.end_comparison,
            lambda: server.roll_back(name(2)),
        ):
            if change == server.follow:
                world.export(2, "recurrent")
            serving = await change()
            await world.follower.poll()
            answers.append([serving.pinned, serving.version, *serving.previous_versions, serving.comparison.version])
        answers.append(json_format.MessageToDict(await server.describe()))
    stub = world.stub("alice")
    for step in range(STEPS):
        answer = await act(stub, observation(2, step), session_id="episode", begin=step == 0)
        answers.append((answer.version, answer.actions))
        await ask(stub.EndSession, pb.EndSessionRequest(session_id="another"))
    return answers


async def test_a_policy_server_ends_in_the_same_state_if_calls_are_repeated_and_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    calls = LossyCalls(tmp_path, LOSSES, monkeypatch)
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = await PolicyWorld.start(folder, "recurrent")
        if number:
            await calls.cover(world.server.address)
        found.append(await operated(world))
        await world.close()
    assert found[0] == found[1]
    assert calls.counts["twice"] >= 3
    assert calls.counts["late"] >= 3
    await calls.close()
