"""Faults of agents that publish their steps: each is found, named and left out, and no step is lost or read twice."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from replay_world import DISCRETE, OBSERVED
from sharing_world import COUNT, HORIZON, MEMORY, WINDY, Board, Other, experienced, numbers, published
from torch import Tensor

from agentpod.experience.foreign_memory import ForeignMemory
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, written_finals
from agentpod.experience.replay_restoring import BLOCK_ROWS
from agentpod.experience.replay_view import SEGMENTS, ReplayView
from agentpod.learner.interfaces import ForeignSteps
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.learner.replay_files import ReplayFiles
from agentpod.learner.sharing.feed import ExperienceFeed
from agentpod.learner.sharing.reader import ExperienceReader
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part, Pointer
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import read_part, store_part
from podrace.checkpoint_store.replay_parts import STATE
from podrace.errors import ResourceExhausted
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2
from podrace.tensor_transport.codec import decode, encode

SEGMENTS_AT_ONCE = 40


class Killed(BaseException):
    """The publisher was killed: nothing handles it."""


class FaultyStore(FolderStore):
    """A store in which one write does not happen, or in which no object is accepted from some write on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder, self.writes = folder, 0
        self.killed_at = self.full_from = math.inf

    def put_object(self, data: bytes, name: str = "") -> str:
        self._write(data)
        if self.writes > self.full_from:
            raise ResourceExhausted("the store is full")
        return super().put_object(data, name)

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        self._write(pointer.SerializeToString())
        super().swap_pointer(agent_id, pointer, etag)

    def _write(self, data: bytes) -> None:
        self.writes += 1
        if self.writes == self.killed_at:
            torn = self.folder / "incoming"
            torn.mkdir(exist_ok=True)
            (torn / f"torn-{self.writes}").write_bytes(data[: len(data) // 2])
            raise Killed


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(tmp_path)


class Learner:
    """An agent that learns from others: a reader, and the feed that fills its memory."""

    def __init__(self, store: FolderStore) -> None:
        agent = pb.Agent(agent_id="t-a9")
        agent.hyperparameters.update(WINDY)
        self.board = Board()
        self.reader = ExperienceReader(store, self.board, agent)
        self.progress = orchestrator_pb2.Progress()
        self.memory = ForeignMemory(OBSERVED, DISCRETE, 100_000)
        reporter = ProgressReporter(self)
        self.feed = ExperienceFeed(cast(Any, self), self.memory, reporter, cast(Any, None), clock=lambda: 0.0)
        self.seen = dict[str, list[float]]()

    async def read_experience(self, replay: ReplayBuffer) -> list[ForeignSteps]:
        found = await self.reader.read("token", MEMORY)
        for one in found:
            self.seen.setdefault(one.agent_id, []).extend(numbers(one))
        return found

    async def poll(self, *sources: pb.ExperienceSource) -> str:
        """Reads what the leaderboard lists; returns what is reported as left out."""
        self.board.sources = list(sources)
        self.progress.shared_experience.Clear()
        self.feed._received.left_out = ""
        await self.feed.read_once()
        return str(self.progress.shared_experience.left_out)


def whole_rows(other: Other) -> int:
    return len(other.world.history) // BLOCK_ROWS * BLOCK_ROWS


def writes_of_a_checkpoint(folder: Path) -> int:
    """Returns how many writes the second checkpoint of an agent takes."""
    store = FaultyStore(folder)
    other = Other(store, "t-a0")
    other.publish(SEGMENTS_AT_ONCE, **WINDY)
    before = store.writes
    other.publish(SEGMENTS_AT_ONCE, **WINDY)
    return store.writes - before


@pytest.mark.long
async def test_a_publisher_that_is_killed_at_any_write_loses_no_step_and_publishes_none_twice(tmp_path: Path) -> None:
    writes = writes_of_a_checkpoint(tmp_path / "dry")
    assert writes > 5
    for write in range(1, writes + 1):
        store = FaultyStore(tmp_path / str(write))
        other, learner = Other(store, "t-a0"), Learner(store)
        first = other.publish(SEGMENTS_AT_ONCE, **WINDY)
        assert await learner.poll(first) == ""
        rows = whole_rows(other)
        assert learner.seen["t-a0"] == experienced(other, rows)
        store.killed_at = store.writes + write
        with pytest.raises(Killed):
            other.publish(SEGMENTS_AT_ONCE, **WINDY)
        assert await learner.poll(first) == "", "a torn segment is in no checkpoint"
        assert learner.seen["t-a0"] == experienced(other, rows)
        # The next pod of the agent starts without a list of stored pieces.
        store.killed_at, other.files = math.inf, ReplayFiles(store, 2**40)
        assert await learner.poll(other.publish(1, **WINDY)) == ""
        assert learner.seen["t-a0"] == experienced(other, whole_rows(other))


async def test_a_full_store_leaves_the_steps_out_until_it_has_room(store: FaultyStore) -> None:
    other, well, learner = Other(store, "t-a0"), Other(store, "t-a1"), Learner(store)
    kept, good = other.publish(SEGMENTS_AT_ONCE, **WINDY), well.publish(SEGMENTS_AT_ONCE, **WINDY)
    store.full_from = store.writes
    with pytest.raises(ResourceExhausted):
        other.publish(SEGMENTS_AT_ONCE, **WINDY)
    assert await learner.poll(kept, good) == ""
    rows = len(learner.seen["t-a0"]) // COUNT
    assert learner.seen["t-a0"] == experienced(other, rows)
    assert learner.seen["t-a1"] == experienced(well, whole_rows(well))
    store.full_from = math.inf
    await learner.poll(other.publish(1, **WINDY), good)
    assert learner.seen["t-a0"] == experienced(other, whole_rows(other))


async def test_a_checkpoint_whose_pieces_found_no_room_lists_no_memory(store: FaultyStore, log_lines: Any) -> None:
    other = Other(store, "t-a0")
    other.publish(SEGMENTS_AT_ONCE, **WINDY)
    store.full_from = store.writes + 1
    stored = other.files.store(ReplayView.of(other.replay))
    assert (list(stored.parts), stored.steps) == ([], 0)
    assert stored.memory_steps == other.replay.size
    (line,) = [line for line in log_lines if line["event"] == "the checkpoint is published without its replay memory"]
    assert line["error"] == "the store is full"


Damage = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Damage:
    return lambda tensors: tensors | {name: change(tensors[name].clone())}


def without(name: str) -> Damage:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def poisoned(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[len(tensor.view(-1)) // 2] = value
        return tensor

    return change


def publish_damaged(store: FolderStore, other: Other, damage: Damage) -> pb.ExperienceSource:
    """Publishes a memory whose newest piece is damaged, with correct digests: its pod wrote it so."""
    other.publish(SEGMENTS_AT_ONCE, **WINDY)
    parts = list(other.files.store(ReplayView.of(other.replay)).parts)
    newest = max((part for part in parts if part.name != STATE), key=lambda part: part.name)
    piece = encode(damage(decode(read_part(store, newest))[0]), {})
    replaced: list[Part] = [store_part(store, part.name, piece) if part is newest else part for part in parts]
    manifest = Manifest(agent_id=other.name, environment_steps=other.replay.steps)
    manifest.hyperparameters.update(WINDY)
    return published(store, manifest, replaced)


def with_fewer_lanes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a piece that is well-formed, but has one environment less than its memory."""
    written = written_finals(tensors["truncated"], HORIZON)
    narrow = {name: tensor[:, :-1] for name, tensor in tensors.items() if name not in (SEGMENTS, FINAL)}
    kept = tensors[FINAL][written.nonzero()[:, 1] < COUNT - 1]
    return narrow | {FINAL: kept, SEGMENTS: tensors[SEGMENTS] - torch.tensor((0, 0, 1))}


LAYOUTS: dict[str, tuple[Damage, str]] = {
    "another type": (changed("reward", Tensor.double), "other spaces"),
    "another width": (changed("observation", lambda tensor: tensor.repeat(1, 1, 2)), "other spaces"),
    "a missing field": (without("terminated"), "other spaces"),
    "a further field": (lambda tensors: tensors | {"log_prob": tensors["reward"].clone()}, "other spaces"),
    "no numbers": (without(SEGMENTS), "other spaces"),
    "half a segment": (changed(SEGMENTS, lambda numbers: numbers + torch.tensor((0, 1, 0))), "whole segments"),
    "other lanes": (changed(SEGMENTS, lambda numbers: numbers + torch.tensor((0, 0, 1))), "whole segments"),
    "a negative number": (changed(SEGMENTS, lambda numbers: numbers * -1), "whole segments"),
    "no lanes": (
        lambda tensors: (
            {name: tensor[:, :0] if name not in (SEGMENTS, FINAL) else tensor for name, tensor in tensors.items()}
            | {SEGMENTS: tensors[SEGMENTS] * torch.tensor((1, 1, 0))}
        ),
        "whole segments",
    ),
    "rows that differ": (changed("action", lambda tensor: tensor[:HORIZON]), "whole segments"),
    "a missing final observation": (changed(FINAL, lambda tensor: tensor[1:]), "from segment 36 on has"),
    "one final observation": (changed(FINAL, lambda tensor: tensor[:1]), "has 1 final observations"),
    "fewer lanes than its memory": (with_fewer_lanes, "from segment 36 on has 4 rows of 2 environments"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", sorted(LAYOUTS))
async def test_a_segment_of_another_layout_is_named_and_the_others_are_read(store: FaultyStore, case: str) -> None:
    damage, reason = LAYOUTS[case]
    bad, well, learner = Other(store, "t-a0"), Other(store, "t-a1"), Learner(store)
    sources = publish_damaged(store, bad, damage), well.publish(SEGMENTS_AT_ONCE, **WINDY)
    left_out = await learner.poll(*sources)
    assert left_out.startswith("replay memory of t-a0: replay.segments.000000000000036: ")
    assert reason in left_out
    assert "\n" not in left_out
    assert learner.seen["t-a0"] == experienced(bad, 36 * HORIZON // BLOCK_ROWS * BLOCK_ROWS)
    assert learner.seen["t-a1"] == experienced(well, whole_rows(well))
    received = learner.progress.shared_experience
    assert (received.agents, received.environment_steps) == (2, sum(map(len, learner.seen.values())))
    sources = bad.publish(20, **WINDY), sources[1]
    assert await learner.poll(*sources) == "", "the segments of a later checkpoint are read"
    assert len(learner.seen["t-a0"]) == len(set(learner.seen["t-a0"]))
    assert learner.seen["t-a0"] == experienced(bad, whole_rows(bad))


NUMBERS: dict[str, tuple[Damage, str]] = {
    "a reward": (changed("reward", poisoned(math.nan)), "reward has numbers that are not finite"),
    "an infinite reward": (changed("reward", poisoned(-math.inf)), "reward has numbers that are not finite"),
    "an observation": (changed("observation", poisoned(math.inf)), "has numbers that are not finite"),
    "an action": (changed("action", poisoned(3)), "actions are not among the choices of the environment"),
    "a negative action": (changed("action", poisoned(-1)), "actions are not among the choices of the environment"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", sorted(NUMBERS))
async def test_a_segment_with_impossible_numbers_is_named_and_never_sampled(store: FaultyStore, case: str) -> None:
    damage, reason = NUMBERS[case]
    bad, well, learner = Other(store, "t-a0"), Other(store, "t-a1"), Learner(store)
    sources = publish_damaged(store, bad, damage), well.publish(SEGMENTS_AT_ONCE, **WINDY)
    left_out = await learner.poll(*sources)
    assert left_out.startswith("replay memory of t-a0: ")
    assert reason in left_out
    learner.memory.take_over()
    assert learner.memory.replay.size == whole_rows(well) * COUNT
    good = Other(store, "t-a2")
    assert await learner.poll(good.publish(SEGMENTS_AT_ONCE, **WINDY)) == "", "later steps of others are used"
    assert learner.progress.shared_experience.agents == 2
