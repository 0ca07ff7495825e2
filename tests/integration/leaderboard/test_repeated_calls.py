"""Each checkpoint is published once if the calls of pods to StoreService are repeated and late.

The objects of a store in a folder do not pass the service. Those of an S3 server are transferred over HTTP with URLs
that the service signs. Signing changes nothing, so its repeats have no effect.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lossy_mesh import Losses, LossyCalls
from store_harness import parts

from podrace import rpc
from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.assignment_store import GrantedStores
from podrace.checkpoint_store.publish import claim, publish
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import FailedPrecondition
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment

LOSSES = Losses(twice=0.5, late=0.3)
VERSIONS = 6


def publisher(client: Any, granted: CheckpointStore, agent: Agent) -> Callable[[], None]:
    """Returns what publishes checkpoints of an agent and checks its pointer after each; it blocks."""
    digests = [""]

    def work() -> None:
        claim(granted, agent.agent_id, 1)
        for version in range(1, VERSIONS + 1):
            made = Manifest(tournament_id=agent.tournament_id, algorithm="ppo", policy_version=version)
            made.previous_manifest_digest = digests[-1]
            digests.append(publish(granted, agent.agent_id, 1, parts(version), made))
            expected = Pointer(
                agent_id=agent.agent_id,
                lease_epoch=1,
                manifest_digest=digests[-1],
                previous_manifest_digest=digests[-2],
            )
            assert client.store.read_pointer(agent.agent_id)[0] == expected
        assert len(set(digests)) == VERSIONS + 1

    return work


async def test_each_checkpoint_is_published_once_if_calls_to_the_store_service_are_repeated_and_late(
    client: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [await client.generate(number) for number in range(2)]
    calls = LossyCalls(folder, LOSSES, monkeypatch)
    await calls.cover(client.address)
    async with rpc.connect(client.address, store_pb2.DESCRIPTOR) as channel:
        stub: Any = store_pb2_grpc.StoreServiceStub(channel)
        stores = GrantedStores(client.store.uri, stub, asyncio.get_running_loop(), environ={})

        def granted(agent: Agent, epoch: int) -> CheckpointStore:
            return stores.of(Assignment(tournament_id=agent.tournament_id, train=agent, lease_epoch=epoch))

        works = [publisher(client, granted(agent, 1), agent) for agent in agents]
        await asyncio.gather(*map(asyncio.to_thread, works))
        # Another pod gets the first agent: no call of the earlier holder replaces the pointer any more.
        await asyncio.to_thread(claim, granted(agents[0], 2), agents[0].agent_id, 2)
        with pytest.raises(FailedPrecondition):
            await asyncio.to_thread(works[0])
    assert client.store.read_pointer(agents[0].agent_id)[0].lease_epoch == 2
    assert calls.counts["twice"] >= 5
    assert calls.counts["late"] >= 3
    await calls.close()
