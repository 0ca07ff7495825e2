"""A store that hangs, such as a folder on NFS whose server is away, is a storage fault: the leader waits for it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from replay_world import World

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.learner.checkpoint_files import StartingState
from agentpod.learner.policy_loader import load_policies
from agentpod.learner.publisher import Publisher
from agentpod.liveness.activity import Activity
from agentpod.storage_waits import StorageWaits
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Part
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.replay_parts import STATE
from podrace.errors import Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, SubmitCandidateRequest, SubmitCandidateResponse
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

AGENT = Agent(agent_id="race-1-a3", tournament_id="race-1")


class Hung(FolderStore):
    """A store that answers nothing until it is freed, and then that it is away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.free = threading.Event()

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        self.free.wait(60)
        raise Unavailable("the server is away")

    def open_object(self, *_: Any, **__: Any) -> Any:
        self.free.wait(60)
        raise Unavailable("the server is away")


class Pod:
    """The publisher of a leader, and what the leader reports."""

    def __init__(self, store: Any) -> None:
        self.stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.activity, self.faults = Activity(), asyncio.Queue[str]()
        self.waits = StorageWaits(self.stop, self.faults.put_nowait, self.activity)
        self.store = store
        self.publisher = Publisher(store, cast(Any, self), AGENT, 1, TournamentSpec(), self.waits)
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def SubmitCandidate(self, request: SubmitCandidateRequest, **_: Any) -> SubmitCandidateResponse:
        """The leaderboard, which does not answer at once."""
        self.asked.set()
        await self.answered.wait()
        return SubmitCandidateResponse()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hung]:
    monkeypatch.setattr("agentpod.storage_waits.HUNG_SECONDS", 0.01)
    store = Hung(tmp_path)
    yield store
    store.free.set()


async def restore(pod: Pod) -> None:
    start = StartingState(replay=(Part(name=STATE, digest="ab" * 32, size_bytes=8),))
    await pod.publisher.restore_replay(start, ReplayBuffer(World(2, 3, 40).memory, 2))


async def load(pod: Pod) -> None:
    await load_policies(pod.store, pb.EvaluationWork(checkpoint=Checkpoint(manifest_digest="ab" * 32)), pod.waits)


@pytest.mark.parametrize("work", [restore, load])
async def test_a_leader_that_reads_waits_for_the_store_and_reports_it_until_the_work_must_end(
    store: Hung, work: Callable[[Pod], Coroutine[Any, Any, None]]
) -> None:
    pod = Pod(store)
    reading = asyncio.create_task(work(pod))
    assert "storage has not answered" in await asyncio.wait_for(pod.faults.get(), 30)
    assert pod.activity.phase == pb.ROLE_PHASE_WAITING
    pod.stop.set_result("drained")
    with pytest.raises(Unavailable, match="has not answered"):
        await reading
    assert pod.activity.phase == pb.ROLE_PHASE_IDLE
    # The event loop waits for its threads when it is closed.
    store.free.set()


async def test_an_agent_plays_against_no_opponents_that_a_hung_store_does_not_return(store: Hung) -> None:
    pod = Pod(store)
    reading = asyncio.create_task(
        pod.publisher.read_opponents([Checkpoint(agent_id="race-1-a4", manifest_digest="ab" * 32)])
    )
    assert "storage has not answered" in await asyncio.wait_for(pod.faults.get(), 30)
    assert pod.activity.phase == pb.ROLE_PHASE_WAITING
    pod.stop.set_result("drained")
    assert await reading == []
    store.free.set()


async def test_a_leader_waits_while_the_leaderboard_does_not_answer_a_submission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pod = Pod(FolderStore(tmp_path))
    monkeypatch.setattr(pod.publisher, "_claim", lambda: (StartingState(), ["ab" * 32]))
    starting = asyncio.create_task(pod.publisher.start())
    await asyncio.wait_for(pod.asked.wait(), 30)
    assert pod.activity.phase == pb.ROLE_PHASE_WAITING
    pod.answered.set()
    await starting
    assert pod.activity.phase == pb.ROLE_PHASE_IDLE


async def test_a_replay_memory_is_restored_once_the_store_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentpod.storage_waits.FIRST_WAIT_SECONDS", 0.0)
    pod, answers = Pod(FolderStore(tmp_path)), [Unavailable("away"), Unavailable("away")]

    def restored(parts: Any, replay: Any) -> int:
        if answers:
            raise answers.pop()
        return 7

    monkeypatch.setattr(pod.publisher._replay_files, "restore", restored)
    await restore(pod)
    assert [pod.faults.get_nowait() for _ in range(3)] == ["away", "away", ""]
