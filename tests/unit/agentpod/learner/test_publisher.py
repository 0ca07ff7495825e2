"""What a pod continues from when it claims an agent."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentpod.learner.checkpoint_files import Counters, StartingState, manifest_of
from agentpod.learner.publisher import Publisher
from agentpod.storage_waits import StorageWaits
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, fetch_latest, publish, read_manifest
from podrace.errors import AGENT_UNKNOWN, BAD_CHECKPOINT, NOT_VERIFIED, DataLoss, InvalidArgument, NotFound, Unavailable
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


def publisher_whose_submissions_are_refused(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, message: str, reason: str
) -> Publisher:
    async def refuse(*_: Any, **__: Any) -> None:
        raise InvalidArgument(message, reason=reason)

    monkeypatch.setattr("agentpod.learner.publisher.rpc.call", refuse)
    waits = StorageWaits(asyncio.get_running_loop().create_future(), lambda _: None)
    updater: Any = SimpleNamespace(SubmitCandidate=None)
    return Publisher(store, updater, agent_of(), 2, TournamentSpec(), waits)


async def test_a_score_that_was_not_verified_does_not_end_the_agent_in_its_next_pod(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may only have changed its pod while its candidate was held."""
    publisher = publisher_whose_submissions_are_refused(store, monkeypatch, "it may not lead", NOT_VERIFIED)
    start = await publisher.start()
    assert (start.counters.environment_steps, start.scored) == (500, True)
    await publisher.submit_all()


async def test_a_score_that_is_refused_for_another_reason_ends_the_agent(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publisher_whose_submissions_are_refused(store, monkeypatch, "it has no policy", BAD_CHECKPOINT)
    with pytest.raises(DataLoss, match="was not accepted: it has no policy"):
        await publisher.start()


# --- checkpoints without a score ----------------------------------------------------------------------------------


class Frozen:
    """A copy of an agent's state, which may take a while to encode."""

    replay = None

    def __init__(self, steps: int, ready: threading.Event | None = None) -> None:
        self.steps, self._ready = steps, ready

    def manifest(self, agent: Agent, **facts: Any) -> Manifest:
        counters = Counters(environment_steps=self.steps)
        manifest = manifest_of(agent, counters, {}, now=facts["now"])
        if facts["evaluation"]:
            manifest.evaluation.CopyFrom(facts["evaluation"])
        return manifest

    def parts(self) -> dict[str, bytes]:
        if self._ready:
            assert self._ready.wait(60.0)
        return {"policy": f"after {self.steps} steps".encode()}


class Updater:
    """A leaderboard that may not answer, and that reads what is submitted if it is given a store."""

    def __init__(self, store: FolderStore | None = None) -> None:
        self.answers, self.store = True, store
        self.accepted: list[int] = []

    async def SubmitCandidate(self, request: Any, **_: Any) -> Any:
        if not self.answers:
            raise Unavailable("no answer")
        if self.store:
            manifest = read_manifest(self.store, request.checkpoint.manifest_digest)
            self.accepted.append(manifest.environment_steps)
        return SimpleNamespace(candidate=SimpleNamespace(score=0.0, rank=1, reason=""))


async def publisher_of(store: FolderStore, updater: Updater) -> Publisher:
    waits = StorageWaits(asyncio.get_running_loop().create_future(), lambda _: None)
    stub: Any = updater
    publisher = Publisher(store, stub, agent_of(), 2, TournamentSpec(), waits)
    await publisher.start()
    return publisher


def newest_steps(store: FolderStore) -> int:
    latest = fetch_latest(store, agent_of().agent_id)
    assert latest is not None
    return int(latest.manifest.environment_steps)


async def test_the_next_pod_continues_from_an_interim_checkpoint(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    publisher = await publisher_of(store, Updater())
    scored: Any = Frozen(1000)
    await publisher.publish(scored, Evaluation(episodes=4))
    interim: Any = Frozen(1500)
    await publisher.publish_interim(interim)
    start = await claimed_by_another(store)
    assert start.counters.environment_steps == 1500
    assert start.parts == {"policy": b"after 1500 steps"}


async def claimed_by_another(store: FolderStore) -> StartingState:
    waits = StorageWaits(asyncio.get_running_loop().create_future(), lambda _: None)
    updater: Any = Updater()
    return await Publisher(store, updater, agent_of(), 3, TournamentSpec(), waits).start()


async def test_a_score_that_waits_for_the_leaderboard_is_not_displaced_by_interim_checkpoints(tmp_path: Path) -> None:
    """The pointer of an agent names two checkpoints, and the next pod submits the scored ones of these."""
    store, updater = FolderStore(tmp_path), Updater()
    publisher = await publisher_of(store, updater)
    updater.answers = False
    scored: Any = Frozen(1000)
    await publisher.publish(scored, Evaluation(episodes=4))
    for steps in (1500, 1800):
        interim: Any = Frozen(steps)
        await publisher.publish_interim(interim)
    assert newest_steps(store) == 1000
    updater.answers = True
    await publisher.submit_all()
    await publisher.publish_interim(interim)
    assert newest_steps(store) == 1800


async def test_checkpoints_become_the_newest_in_the_order_in_which_they_were_taken(tmp_path: Path) -> None:
    store, ready = FolderStore(tmp_path), threading.Event()
    publisher = await publisher_of(store, Updater())
    slow: Any = Frozen(1500, ready)
    scored: Any = Frozen(2000)
    storing = asyncio.create_task(publisher.publish_interim(slow))
    scoring = asyncio.create_task(publisher.publish(scored, Evaluation(episodes=4)))
    await asyncio.sleep(0)
    ready.set()
    await asyncio.gather(storing, scoring)
    assert newest_steps(store) == 2000


# --- scores that waited for too long ------------------------------------------------------------------------------


async def publisher_after_an_outage(whole: FolderStore) -> tuple[Publisher, Updater]:
    """Returns the publisher of an agent that was scored three times while the leaderboard did not answer."""
    store = whole.within("race-1")
    updater = Updater(store)
    publisher = await publisher_of(store, updater)
    updater.answers = False
    for steps in (1000, 2000, 3000):
        scored: Any = Frozen(steps)
        await publisher.publish(scored, Evaluation(episodes=4))
    updater.answers = True
    return publisher, updater


async def test_a_score_whose_checkpoint_was_deleted_during_a_long_outage_does_not_end_the_agent(tmp_path: Path) -> None:
    """The leaderboard keeps the newest two checkpoints of an agent; all pods lose their older ones together."""
    whole = FolderStore(tmp_path)
    publisher, updater = await publisher_after_an_outage(whole)
    assert collect(whole, [], 0.0)
    await publisher.submit_all()
    assert updater.accepted == [2000, 3000]


async def test_a_newest_checkpoint_that_the_leaderboard_does_not_find_ends_the_agent(tmp_path: Path) -> None:
    """Its store may be another one than that of the pods."""
    publisher, updater = await publisher_after_an_outage(FolderStore(tmp_path / "pods"))
    updater.store = FolderStore(tmp_path / "other").within("race-1")
    with pytest.raises(NotFound):
        await publisher.submit_all()
    assert updater.accepted == []


async def test_the_scores_of_an_agent_that_the_leaderboard_has_lost_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, updater = await publisher_after_an_outage(FolderStore(tmp_path))

    async def unknown(*_: Any, **__: Any) -> None:
        raise NotFound("never generated here", reason=AGENT_UNKNOWN)

    with monkeypatch.context() as lost:
        lost.setattr("agentpod.learner.publisher.rpc.call", unknown)
        with pytest.raises(NotFound, match="never generated"):
            await publisher.submit_all()
    await publisher.submit_all()
    assert updater.accepted == [1000, 2000, 3000]
