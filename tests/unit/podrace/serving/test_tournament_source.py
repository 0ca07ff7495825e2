"""The champion of a tournament is offered, read with its members, and checked with its test vectors."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import prometheus_client
import pytest
from policies import published

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import DataLoss, NotFound, PermissionDenied, Unavailable
from podrace.serving import follower
from podrace.serving.decisions.versions import version_of
from podrace.serving.engine import EngineLimits, PolicyEngine
from podrace.serving.follower import SourceFollower
from podrace.serving.policy_version import PolicyVersion
from podrace.serving.sources import TournamentSource
from podrace.tournament.v1.tournament_pb2 import Tournament


def digest(seed: int) -> str:
    return f"{seed:064x}"


class ScriptedMesh:
    """A tournament whose champion the test sets; fetching counts."""

    def __init__(self) -> None:
        self.champion: list[int] = []
        self.error: Exception | None = None
        self.fetched: list[str] = []

    async def get_champion_members(self, tournament: Tournament) -> list[Checkpoint]:
        if self.error:
            raise self.error
        if not self.champion:
            raise NotFound("no candidate yet")
        return [Checkpoint(agent_id=f"race-1-a{seed}", manifest_digest=digest(seed)) for seed in self.champion]

    async def get_tournament(self, tournament_id: str) -> Tournament:
        if self.error:
            raise self.error
        return Tournament(tournament_id=tournament_id)

    async def fetch(self, manifest_digest: str) -> Any:
        self.fetched.append(manifest_digest)
        return published("logits", int(manifest_digest, 16)).checkpoint


@pytest.fixture
async def world():
    mesh = ScriptedMesh()
    source = TournamentSource(mesh, "race-1", lambda tournament: mesh)
    engine = PolicyEngine(EngineLimits(), clock=lambda: 0.0)
    yield SimpleNamespace(mesh=mesh, source=source, engine=engine, follower=SourceFollower(engine, source))
    await engine.close()


async def test_nothing_serves_until_there_is_a_champion_and_then_it_does(world):
    await world.follower.poll()
    assert world.engine.record.current == ""
    world.mesh.champion = [1]
    await world.follower.poll()
    assert world.engine.record.current == digest(1)


async def test_a_champion_that_serves_is_not_fetched_again(world):
    world.mesh.champion = [1]
    for _ in range(3):
        await world.follower.poll()
    assert world.mesh.fetched == [digest(1)]


async def test_an_ensemble_serves_with_all_its_members(world):
    world.mesh.champion = [1, 2, 3]
    await world.follower.poll()
    assert world.engine.record.current == version_of([digest(1), digest(2), digest(3)])
    assert len(world.engine.current.members) == 3


async def test_a_mesh_that_does_not_answer_leaves_the_version_that_serves_and_is_reported_once(world, log_lines):
    world.mesh.champion = [1]
    await world.follower.poll()
    world.mesh.error = Unavailable("the orchestrator restarts")
    for _ in range(3):
        await world.follower.poll()
    assert world.engine.record.current == digest(1)
    assert sum("the orchestrator restarts" in str(line) for line in log_lines) == 1
    world.mesh.error, world.mesh.champion = None, [2]
    await world.follower.poll()
    assert world.engine.record.current == digest(2)


async def test_any_checkpoint_of_the_tournament_can_be_read(world):
    assert PolicyVersion(await world.source.read(digest(9))).version == digest(9)


async def test_a_policy_that_contradicts_its_test_vectors_is_not_served(world, monkeypatch):
    async def exchanged(manifest_digest: str) -> Any:
        made, other = (published("squashed", seed).checkpoint for seed in (1, 2))
        made.parts["test_vectors"] = other.parts["test_vectors"]
        return made

    monkeypatch.setattr(world.mesh, "fetch", exchanged)
    with pytest.raises(DataLoss, match="does not act as its test vectors say"):
        await world.source.read(digest(1))
    world.mesh.champion = [1]
    await world.follower.poll()
    assert world.engine.record.current == ""


async def test_a_damaged_champion_is_read_again_after_growing_pauses_and_another_one_at_once(
    world, log_lines, monkeypatch
):
    fetch = world.mesh.fetch

    async def damaged(manifest_digest: str) -> Any:
        made = await fetch(manifest_digest)
        return replace(made, parts={**made.parts, "test_vectors": b"damaged"}) if manifest_digest != digest(3) else made

    monkeypatch.setattr(world.mesh, "fetch", damaged)
    before, read_at = source_errors(), []
    world.mesh.champion = [1]
    for poll in range(40):
        fetched = len(world.mesh.fetched)
        await world.follower.poll()
        read_at += [poll] * (len(world.mesh.fetched) - fetched)
    assert read_at == [0, 2, 5, 10, 19, 36]
    assert source_errors() == before + 40
    assert sum("tensor file" in str(line) for line in log_lines) == 1
    for champion in (2, 3):
        world.mesh.champion = [champion]
        await world.follower.poll()
        assert world.mesh.fetched[-1] == digest(champion)
    assert world.engine.record.current == digest(3)


async def test_the_pauses_between_two_reads_of_a_damaged_champion_are_bounded(world, monkeypatch):
    monkeypatch.setattr(follower, "LONGEST_PAUSE_POLLS", 2)
    monkeypatch.setattr(world.mesh, "fetch", AsyncMock(side_effect=DataLoss("damaged")))
    world.mesh.champion = [1]
    for _ in range(12):
        await world.follower.poll()
    assert world.mesh.fetch.await_count == 5


def source_errors() -> float:
    return prometheus_client.REGISTRY.get_sample_value("podrace_serving_source_errors_total") or 0.0


async def test_a_defect_while_polling_is_logged_and_counted_and_the_server_follows_on(world, log_lines, monkeypatch):
    async def broken(tournament: Tournament) -> list[Checkpoint]:
        raise ValueError("a defect")

    before = source_errors()
    with monkeypatch.context() as patched:
        patched.setattr(world.mesh, "get_champion_members", broken)
        for _ in range(2):
            await world.follower.poll()
    assert source_errors() == before + 2
    (logged,) = [line for line in log_lines if "a defect" in str(line)]
    assert logged["exc_info"]
    world.mesh.champion = [1]
    await world.follower.poll()
    assert world.engine.record.current == digest(1)


async def test_a_mesh_that_is_down_at_the_start_is_awaited_and_then_the_pinned_version_serves(world):
    follower = SourceFollower(world.engine, world.source, pinned=digest(2))
    world.mesh.champion, world.mesh.error = [1], Unavailable("the orchestrator is down")
    await follower.begin()
    await follower.poll()
    assert world.engine.record.current == ""
    world.mesh.error = None
    await follower.poll()
    assert (world.engine.record.current, world.engine.record.pinned) == (digest(2), True)
    world.engine.follow()
    await follower.poll()
    assert world.engine.record.current == digest(1), "it was pinned once"


async def test_a_source_that_cannot_be_used_ends_the_server_also_after_an_outage(world):
    follower = SourceFollower(world.engine, world.source)
    world.mesh.error = Unavailable("the mesh starts")
    await follower.begin()

    async def polled() -> None:
        world.mesh.error = NotFound("there is no such tournament")

    with pytest.raises(NotFound):
        await follower.run(0.0, polled)


@pytest.mark.parametrize("error", [NotFound("there is no such tournament"), PermissionDenied("not yours")])
async def test_a_source_that_cannot_be_used_ends_the_start(world, error):
    world.mesh.error = error
    with pytest.raises(type(error), match=error.message):
        await world.follower.begin()
