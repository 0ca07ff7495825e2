"""`podrace serve` on a home: it serves the champion of a tournament and an exported folder, and stops cleanly."""

import asyncio
import json
import signal

import gymnasium
import json_schemas
import numpy as np
import pytest

from podrace import rpc
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc

pytestmark = pytest.mark.e2e


async def played(address: str, seed: int) -> tuple[float, str]:
    """Plays an episode of CartPole through PolicyService; returns its return and the version that acted."""
    environment = gymnasium.make("CartPole-v1")
    async with rpc.connect(address, pb.DESCRIPTOR) as channel:
        stub = pb_grpc.PolicyServiceStub(channel)
        observation, _ = environment.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            request = pb.ActRequest(observations=observation.astype("<f4").tobytes())
            answer = await rpc.call(stub.Act, request, deadline_seconds=10.0)
            action = int(np.frombuffer(answer.actions, "<i8")[0])
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, done = total + float(reward), terminated or truncated
    return total, answer.version


def test_a_champion_is_served_without_its_mesh_and_gets_the_returns_of_its_export(home, tmp_path):
    trained = home.json("train", str(home.spec("environment_steps = 9000", pool="maximum_pods = 1")))
    home.published("export", "latest", "--folder", str(tmp_path / "exported"))
    played_by = {}
    for name, subject in (("tournament", trained["tournament_id"]), ("folder", str(tmp_path / "exported"))):
        address = f"unix:{tmp_path}/{name}.sock"
        ports = ("--rest", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
        process = home.start("serve", subject, "--listen", address, *ports, "--json")
        facts = json.loads(process.stdout.readline())
        json_schemas.check(["serve"], facts)
        assert facts["grpc"] == address
        played_by[name] = [asyncio.run(played(address, seed)) for seed in range(3)]
        if name == "tournament":
            assert home.json("show", "latest")["tournament_id"] == trained["tournament_id"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, process.stderr.read()
    assert played_by["tournament"] == played_by["folder"]
    assert all(total >= 8.0 for total, _ in played_by["folder"])
    assert not home.left_behind()
