"""Objects that the store does not delete now delay neither those of other tournaments nor later deletions."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leaderboard.checkpoints.deletion import LATER, TournamentDeletion
from leaderboard.store.deletion_records import pending_deletions
from leaderboard.store.owners import TournamentOwners
from podrace.checkpoint_store.folder import FolderStore
from podrace.errors import Unavailable
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NAMES = ("ant-abc123", "bee-abc123")
DEADLINE_SECONDS = 60.0


class FaultyStore(FolderStore):
    """A store that fails to delete one tournament as long as it has a fault."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fault: Exception | None = None
        self.attempts: Counter[str] = Counter()

    def delete_tournament(self, tournament_id: str) -> int:
        self.attempts[tournament_id] += 1
        if self.fault and tournament_id == NAMES[0]:
            raise self.fault
        return super().delete_tournament(tournament_id)


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(tmp_path / "store")


@pytest.fixture
async def deletion(mesh: Any, store: FaultyStore, make_spec: Callable[..., TournamentSpec]) -> TournamentDeletion:
    for name in NAMES:
        await mesh.generate(make_spec(), 0, tournament_id=name)
    return TournamentDeletion(mesh.state, store, TournamentOwners())


async def pending(mesh: Any) -> list[str]:
    return [name for name, _ in await mesh.state.transact(pending_deletions)]


@pytest.mark.parametrize(
    ("fault", "level"), [(Unavailable("the server is away"), "warning"), (ValueError("a defect"), "error")]
)
async def test_a_tournament_that_cannot_be_deleted_does_not_delay_the_others(
    mesh: Any, store: FaultyStore, deletion: TournamentDeletion, log_lines: list[Any], fault: Exception, level: str
) -> None:
    for name in NAMES:
        await deletion.delete(name)
    store.fault = fault
    assert not await deletion.delete_objects()
    assert await pending(mesh) == [NAMES[0]]
    logged = [(line["tournament_id"], line["log_level"]) for line in log_lines if line["event"] == LATER]
    assert logged == [(NAMES[0], level)]
    store.fault = None
    assert await deletion.delete_objects()
    assert await pending(mesh) == []


async def test_a_defect_does_not_end_the_deletions(
    mesh: Any, store: FaultyStore, deletion: TournamentDeletion, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()
    delete_objects = deletion.delete_objects

    async def noted() -> bool:
        try:
            return await delete_objects()
        finally:
            tried.set()

    monkeypatch.setattr(deletion, "delete_objects", noted)
    store.fault = ValueError("a defect")
    await deletion.delete(NAMES[0])
    async with deletion, asyncio.timeout(DEADLINE_SECONDS):
        await tried.wait()
        tried.clear()
        store.fault = None
        await deletion.delete(NAMES[1])
        await tried.wait()
        assert store.attempts == {NAMES[0]: 2, NAMES[1]: 1}
        assert await pending(mesh) == []
