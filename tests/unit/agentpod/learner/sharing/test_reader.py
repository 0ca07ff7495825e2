"""Tests that each step of another agent is read once, and that files which cannot be used are left out by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from replay_world import DISCRETE, OBSERVED, World
from sharing_world import COUNT, HORIZON, MEMORY, WINDY, Board, Other, experienced, numbers, published

from agentpod.experience import replay_restoring
from agentpod.experience.foreign_memory import ForeignMemory
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS
from agentpod.experience.replay_view import ReplayPiece, ReplayView
from agentpod.learner.interfaces import ForeignSteps
from agentpod.learner.sharing import reader as module
from agentpod.learner.sharing.reader import ExperienceReader
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.replay_parts import PIECE, STATE, is_replay
from podrace.errors import DeadlineExceeded, InvalidArgument, PodraceError, ResourceExhausted, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def reader(store: FolderStore, board: Board) -> ExperienceReader:
    agent = pb.Agent(agent_id="t-a9")
    agent.hyperparameters.update({"environment.count": 8, "environment.options.wind": 0.5, "discount": 0.9})
    return ExperienceReader(store, board, agent)


async def read(reader: ExperienceReader, memory: ReplayBuffer = MEMORY) -> list[ForeignSteps]:
    return await reader.read("token", memory)


async def test_each_step_is_read_once(store: FolderStore, board: Board, reader: ExperienceReader) -> None:
    other, seen = Other(store, "t-a0"), list[float]()
    for segments in (40, 3, 25, 1, 60, 0, 20):
        board.sources = [other.publish(segments, **WINDY)]
        for found in await read(reader):
            assert (found.agent_id, found.left_out) == ("t-a0", "")
            seen += numbers(found)
    rows = len(other.world.history) // BLOCK_ROWS * BLOCK_ROWS
    assert seen == experienced(other, rows)
    assert [request.after_sequence for request in board.requests] == [0, 10, 20, 30, 40, 50, 60]
    assert {(request.agent_id, request.lease_token) for request in board.requests} == {("t-a9", "token")}


async def test_what_an_agent_inherited_is_not_read_from_it(
    store: FolderStore, board: Board, reader: ExperienceReader
) -> None:
    child = Other(store, "t-a1")
    child.inherit(50)
    board.sources = [child.publish(40, **WINDY)]
    (found,) = await read(reader)
    seen = numbers(found)
    own = [step.observation[0] for steps in child.world.history[50 * HORIZON :] for step in steps]
    assert seen == own[: len(seen)]
    assert len(seen) == 40 * HORIZON // BLOCK_ROWS * BLOCK_ROWS * COUNT


async def test_agents_with_other_numbers_of_environments_and_horizons_are_read(
    store: FolderStore, board: Board, reader: ExperienceReader
) -> None:
    others = [
        Other(store, f"t-a{number}", horizon=horizon, count=count) for number, horizon, count in ((0, 1, 5), (1, 7, 2))
    ]
    board.sources = [other.publish(200, **WINDY) for other in others]
    found = await read(reader)
    assert [one.agent_id for one in found] == ["t-a1", "t-a0"], "the newest comes last"
    assert [len(numbers(one)) for one in found] == [1400 // BLOCK_ROWS * BLOCK_ROWS * 2, 192 * 5]


async def test_the_newest_steps_are_read_if_not_all_fit(
    store: FolderStore, board: Board, reader: ExperienceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other(store, "t-a0")
    board.sources = [other.publish(300, **WINDY)]
    small = ReplayBuffer(World(1, 1, 2 * BLOCK_ROWS).memory, 1)
    (found,) = await read(reader, small)
    seen = numbers(found)
    assert 2 * BLOCK_ROWS <= len(seen) < 6 * BLOCK_ROWS * COUNT
    # Of the newest run, less than a block is left for the next time.
    assert max(seen) > max(experienced(other, len(other.world.history) - BLOCK_ROWS))
    again = Other(store, "t-a01")
    board.sources = [again.publish(300, **WINDY)]
    monkeypatch.setattr(module, "READ_BYTES", 3_000)
    (found,) = await read(reader)
    assert 0 < len(found.runs[0]["reward"]) < 200


async def test_the_newest_memories_share_what_fits_and_no_more_are_read(
    store: FolderStore, board: Board, reader: ExperienceReader
) -> None:
    others = [Other(store, f"t-a{number}") for number in range(4)]
    sources = [other.publish(40, **WINDY) for other in others]
    board.sources = sources[::-1]
    whole = 40 * HORIZON // BLOCK_ROWS * BLOCK_ROWS * COUNT
    small = ForeignMemory(OBSERVED, DISCRETE, whole)
    found = await read(reader, small.replay)
    # A quarter each would be less than the block of each environment that is read at least.
    smallest = BLOCK_ROWS * COUNT
    assert [(one.agent_id, len(numbers(one))) for one in found] == [("t-a2", smallest), ("t-a3", smallest)]
    received = sum(small.add(run, published=0.0) for one in found for run in one.runs)
    while small.replay.steps < small.replay.capacity:
        small.take_over()
    assert received == small.replay.capacity == whole == 2 * smallest


async def test_an_agent_in_another_environment_is_left_out(
    store: FolderStore, board: Board, reader: ExperienceReader
) -> None:
    board.sources = [Other(store, "t-a0").publish(40, **WINDY | {"environment.options.wind": 0.7})]
    (found,) = await read(reader)
    assert not found.runs
    assert "acts in another environment" in found.left_out


def piece_files(source: pb.ExperienceSource, store: FolderStore, folder: Path) -> list[Path]:
    """Returns the files of the pieces of a memory, the newest first."""
    parts = read_manifest(store, source.manifest_digest).parts
    pieces = sorted((part for part in parts if part.name != STATE and is_replay(part)), key=lambda part: part.name)
    return [next(folder.rglob(f"*{part.digest}*")) for part in reversed(pieces)]


async def test_a_memory_without_a_readable_file_is_left_out_and_the_others_are_read(
    store: FolderStore, board: Board, reader: ExperienceReader, tmp_path: Path
) -> None:
    gone, torn, well = (Other(store, f"t-a{number}") for number in range(3))
    board.sources = [one.publish(40, **WINDY) for one in (gone, torn, well)]
    for file in piece_files(board.sources[0], store, tmp_path):
        file.unlink()
    for file in piece_files(board.sources[1], store, tmp_path):
        file.write_bytes(b"torn")
    board.sources.append(pb.ExperienceSource(agent_id="t-a3", manifest_digest="ab" * 32))
    found = {one.agent_id: one for one in await read(reader)}
    assert not any(found[name].runs for name in ("t-a0", "t-a1", "t-a3"))
    assert all(found[name].left_out for name in ("t-a0", "t-a1", "t-a3"))
    assert len(numbers(found["t-a2"])) == 128 * COUNT


async def test_the_other_pieces_of_a_memory_are_read_where_some_are_deleted_or_damaged(
    store: FolderStore, board: Board, reader: ExperienceReader, tmp_path: Path, log_lines: Any
) -> None:
    other = Other(store, "t-a0")
    board.sources = [other.publish(120, **WINDY)]
    files = piece_files(board.sources[0], store, tmp_path)
    files[5].unlink()
    files[11].write_bytes(b"torn")
    (found,) = await read(reader)
    assert not found.left_out
    assert len(found.runs) == 3
    assert len(numbers(found)) == sum(len(run["reward"]) // BLOCK_ROWS for run in found.runs) * BLOCK_ROWS * COUNT > 0
    assert set(numbers(found)) < set(experienced(other, len(other.world.history)))
    (line,) = [line for line in log_lines if line["event"].startswith("pieces of a replay memory cannot be read")]
    assert (line["source"], line["pieces"], line["log_level"]) == ("t-a0", 2, "warning")


async def test_pieces_with_inherited_steps_are_not_requested(
    store: FolderStore, board: Board, reader: ExperienceReader, tmp_path: Path, log_lines: Any
) -> None:
    other = Other(store, "t-a0")
    other.inherit(70)
    board.sources = [other.publish(40, **WINDY)]
    size = ReplayView.of(other.replay).piece_segments
    first_left = (70 // size + 1) * size
    for file in piece_files(board.sources[0], store, tmp_path)[-(-(110 - first_left) // size) :]:
        file.unlink()
    (found,) = await read(reader)
    assert len(numbers(found)) == (110 - first_left) * HORIZON // BLOCK_ROWS * BLOCK_ROWS * COUNT > 0
    (line,) = [line for line in log_lines if line["event"].startswith("pieces of a replay memory cannot be read")]
    assert (line["source"], line["pieces"], line["log_level"]) == ("t-a0", 1, "info")


@pytest.mark.parametrize("segments", [16, 40, 70])
async def test_all_steps_are_read_of_an_agent_that_was_resumed_without_its_memory(
    store: FolderStore, board: Board, reader: ExperienceReader, segments: int
) -> None:
    other = Other(store, "t-a0")
    board.sources = [other.publish(40, **WINDY)]
    await read(reader)
    first = other.resume_without_memory()
    seen = list[float]()
    for more in (segments, 25):
        board.sources = [other.publish(more, **WINDY)]
        for found in await read(reader):
            seen += numbers(found)
    rows = (segments + 25) * HORIZON // BLOCK_ROWS * BLOCK_ROWS
    assert seen == experienced(other, first + rows)[first * COUNT :]


async def test_an_unexpected_error_in_one_memory_is_logged_and_the_others_are_read(
    store: FolderStore, board: Board, reader: ExperienceReader, monkeypatch: pytest.MonkeyPatch, log_lines: Any
) -> None:
    bad, well = Other(store, "t-a0", horizon=5), Other(store, "t-a1")
    board.sources = [other.publish(40, **WINDY) for other in (bad, well)]

    def dense_steps(piece: ReplayPiece) -> dict[str, torch.Tensor]:
        if piece.horizon == 5:
            raise RuntimeError("shapes differ")
        return replay_restoring.dense_steps(piece)

    monkeypatch.setattr(module, "dense_steps", dense_steps)
    found = {one.agent_id: one for one in await read(reader)}
    assert (found["t-a0"].runs, found["t-a0"].left_out) == ((), "cannot be read: RuntimeError")
    assert len(numbers(found["t-a1"])) == 128 * COUNT
    (line,) = [line for line in log_lines if line["event"] == "a replay memory cannot be read"]
    assert (line["source"], line["log_level"]) == ("t-a0", "error")


def test_pieces_with_other_numbers_of_environments_are_not_joined() -> None:
    pieces = [
        module._NumberedSteps(number, 4 * number, {"reward": torch.zeros(4, lanes)})
        for number, lanes in ((7, 3), (8, 3), (9, 2))
    ]
    (joined,) = module._joined(pieces[:2])
    assert (joined.first_segment, joined.rows) == (7, 8)
    with pytest.raises(InvalidArgument, match="from segment 7 on has 3 environments, the piece that"):
        module._joined(pieces)


async def test_a_memory_with_other_spaces_is_left_out(
    store: FolderStore, board: Board, reader: ExperienceReader
) -> None:
    board.sources = [Other(store, "t-a0").publish(40, **WINDY)]
    memory = dict(World(1, 1, 100).memory)
    memory["observation"] = memory["final_observation"] = torch.zeros(100, 1, 5)
    (found,) = await read(reader, ReplayBuffer(memory, 1))
    assert not found.runs
    assert "other spaces" in found.left_out


async def test_no_more_pieces_of_a_memory_with_other_spaces_are_read_than_the_budget_allows(
    store: FolderStore, board: Board, reader: ExperienceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.sources = [Other(store, "t-a0").publish(120, **WINDY)]
    decoded = list[str]()
    monkeypatch.setattr(module, "READ_BYTES", 6_000)
    decode = reader._decode
    monkeypatch.setattr(reader, "_decode", lambda part: (decoded.append(part.name), decode(part))[1])
    memory = dict(World(1, 1, 100).memory)
    memory["observation"] = memory["final_observation"] = torch.zeros(100, 1, 5)
    (found,) = await read(reader, ReplayBuffer(memory, 1))
    assert "other spaces" in found.left_out
    assert 1 < len(decoded) < 6


async def test_the_age_of_steps_counts_from_the_publication_of_their_checkpoint(
    store: FolderStore, board: Board
) -> None:
    agent = pb.Agent(agent_id="t-a9")
    agent.hyperparameters.update(WINDY)
    reader = ExperienceReader(store, board, agent, wall_clock=lambda: 5_000.0)
    old, later, unknown = (Other(store, f"t-a{number}") for number in range(3))
    sources = old.publish(40, 1_400.0, **WINDY), later.publish(40, 5_001.0, **WINDY), unknown.publish(40, **WINDY)
    board.sources = list(sources)
    assert {one.agent_id: one.age_seconds for one in await read(reader)} == {"t-a0": 3_600.0, "t-a1": 0.0, "t-a2": 0.0}


async def test_no_steps_are_read_from_a_checkpoint_without_a_replay_memory(
    store: FolderStore, board: Board, reader: ExperienceReader
) -> None:
    manifest = Manifest(agent_id="t-a0", environment_steps=100)
    manifest.hyperparameters.update(WINDY)
    board.sources = [published(store, manifest)]
    assert await read(reader) == []


class FaultyStore(FolderStore):
    """A store that raises errors for some objects, each once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.faults: dict[str, list[PodraceError]] = {}

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        if self.faults.get(name):
            raise self.faults[name].pop()
        return super().get_object(name, largest_bytes)


async def test_a_memory_that_the_store_does_not_return_is_read_at_a_later_poll(tmp_path: Path, board: Board) -> None:
    store, agent = FaultyStore(tmp_path), pb.Agent(agent_id="t-a9")
    agent.hyperparameters.update(WINDY)
    reader = ExperienceReader(store, board, agent)
    others = [Other(store, f"t-a{number}") for number in range(3)]
    board.sources = [other.publish(40, **WINDY) for other in others]
    first, second = (source.manifest_digest for source in board.sources[:2])
    pieces = [part for part in read_manifest(store, second).parts if part.name.startswith(PIECE)]
    oldest = min(pieces, key=lambda part: part.name).digest
    store.faults = {first: [Unavailable("away")], oldest: [ResourceExhausted("busy"), DeadlineExceeded("slow")]}
    assert [one.agent_id for one in await read(reader)] == ["t-a2"]
    board.sources = []
    assert [one.agent_id for one in await read(reader)] == ["t-a0"]
    (found,) = await read(reader)
    assert (found.agent_id, found.left_out) == ("t-a1", "")
    assert numbers(found) == experienced(others[1], 40 * HORIZON // BLOCK_ROWS * BLOCK_ROWS)
    assert await read(reader) == []


async def test_a_leaderboard_that_does_not_answer_is_an_error(board: Board, reader: ExperienceReader) -> None:
    board.reachable = False
    with pytest.raises(Unavailable):
        await read(reader)
