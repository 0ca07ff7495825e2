"""A leaderboard that was stopped until another replica led deletes nothing from the store when it continues."""

from typing import Any

import pytest

from leaderboard.checkpoints.deletion import delete_from_store
from leaderboard.garbage import collect_once
from leaderboard.ranking.retention import Retention
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import Unavailable

HOUR = 3600.0


class Lease:
    """A leadership that ends after some changes."""

    def __init__(self, changes: int) -> None:
        self.changes = changes

    def check(self) -> None:
        if not self.changes:
            raise Unavailable("another replica leads")
        self.changes -= 1


def stored(store: CheckpointStore) -> int:
    return len(list(store.list_objects()))


async def test_a_collection_ends_with_the_leadership(mesh: Any) -> None:
    for number in range(3):
        mesh.store.put_object(b"garbage %d" % number)
    mesh.clock.now += 2 * HOUR
    for changes, left in ((0, 3), (2, 2), (3, 0)):
        options = {"grace_seconds": HOUR, "retention": Retention(), "check_leads": Lease(changes).check}
        if left:
            with pytest.raises(Unavailable, match="another replica leads"):
                await collect_once(mesh.state, mesh.store, **options)
        else:
            await collect_once(mesh.state, mesh.store, **options)
        assert stored(mesh.store) == left


def test_the_deletion_of_a_tournament_ends_with_the_leadership(mesh: Any) -> None:
    store = mesh.store.within("race")
    store.put_object(b"a part")
    for changes in (0, 1, 2):
        with pytest.raises(Unavailable, match="another replica leads"):
            delete_from_store(mesh.store, "race", 2, Lease(changes).check)
        assert stored(store) == 1
    assert delete_from_store(mesh.store, "race", 2, Lease(3).check) == 1
