"""What a pod continues from when it claims an agent."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentpod.learner.checkpoint_files import Counters, StartingState, manifest_of
from agentpod.learner.publisher import Publisher
from agentpod.storage_waits import StorageWaits
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def agent_of(rate: float = 0.001, **fields: Any) -> Agent:
    agent = Agent(**{"agent_id": "race-1-a3", "tournament_id": "race-1", "algorithm": "ppo", "seed": 7} | fields)
    agent.hyperparameters.update({"learning_rate": rate})
    return agent


async def claimed(store: FolderStore, agent: Agent) -> StartingState:
    """Returns the starting state of a pod that claims an agent; a submission would fail, for there is no updater."""
    updater: Any = None
    waits = StorageWaits(asyncio.get_running_loop().create_future(), lambda _: None)
    return await Publisher(store, updater, agent, 2, TournamentSpec(), waits).start()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A store with a scored checkpoint of an agent."""
    store, agent = FolderStore(tmp_path), agent_of()
    manifest = manifest_of(agent, Counters(environment_steps=500), {}, now=1.0)
    manifest.evaluation.episodes = 4
    claim(store, agent.agent_id, 1)
    publish(store, agent.agent_id, 1, {"policy": b"weights"}, manifest)
    return store


@pytest.mark.parametrize("changes", [{"rate": 0.002}, {"algorithm": "sac"}, {"seed": 8}])
async def test_an_agent_that_was_generated_again_under_the_same_id_starts_again_and_submits_nothing(
    store: FolderStore, changes: dict[str, Any]
) -> None:
    """The leaderboard would refuse the checkpoint, because it contradicts the agent, and the agent would fail."""
    start = await claimed(store, agent_of(**changes))
    assert (start.counters, start.parts) == (Counters(), {})


async def test_an_agent_continues_from_its_own_checkpoint(store: FolderStore) -> None:
    with pytest.raises(AttributeError, match="SubmitCandidate"):
        await claimed(store, agent_of())
