"""What remains of a deleted tournament in the database and in the store: nothing. Others are unchanged."""

from pathlib import Path
from typing import Any

from fuzz.worlds import given_spec, published

from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.generator import Generator
from leaderboard.store import records
from leaderboard.store.deletion_records import delete_rows, pending_deletions
from leaderboard.store.owners import TournamentOwners
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.checkpoint.v1 import store_pb2 as store_pb
from podrace.checkpoint_store.folder import FolderStore
from podrace.database import Database, Transaction
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.specification.ancestor import tournament_of
from podrace.specification.resolve import resolve

NAMES = ("kept-abcdef", "gone-abcdef")


def dump(transaction: Transaction) -> str:
    tables = transaction.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return str([transaction.execute(f"SELECT * FROM {name}") for (name,) in tables])


async def test_a_deleted_tournament_leaves_nothing_behind(tmp_path: Path) -> None:
    state = Database.open(tmp_path / "leaderboard.sqlite", DATABASE_FORMAT, lambda: 1.7e9)
    store, owners = FolderStore(tmp_path / "store"), TournamentOwners()
    updater, generator = Updater(state, store, SubmissionWatch()), Generator(state, owners=owners)
    for number in range(2):
        # The last agent of the tournament that is kept was generated after a submission of the other one.
        for name in reversed(NAMES):
            request = pb.GenerateAgentRequest(
                request_id=f"{name}-a{number}", tournament_id=name, spec=resolve(given_spec()), number=number
            )
            agent: Any = await generator.generate(request)
            if number == 0 or name != NAMES[0]:
                await updater.submit(published(store, agent, float(number)))
    last = await state.transact(records.last_sequence)
    access = StoreAccess(state, store, renew_after_seconds=60.0)
    for name in NAMES:
        await access.get_pointer(store_pb.GetPointerRequest(tournament_id=name, agent_id=f"{name}-a0", lease_epoch=1))
    deletion = TournamentDeletion(state, store, owners, on_deleted=access.forget)
    await state.transact(delete_rows, NAMES[1])
    assert await state.transact(pending_deletions) == [(NAMES[1], 2)]
    # As after a restart: the objects of what was deleted before are deleted first.
    await deletion.delete(NAMES[1])
    await deletion.delete_objects()
    assert NAMES[1] not in await state.transact(dump)
    assert owners.ownership_of(NAMES[1]) is None
    assert set(access._epochs) == {f"{NAMES[0]}-a0"}
    assert {tournament_of(pointer.agent_id) for pointer in store.list_pointers()} == {NAMES[0]}
    assert {stored.tournament_id for stored in store.list_objects()} <= {NAMES[0], ""}
    assert not (tmp_path / "store" / "tournaments" / NAMES[1]).exists()
    assert len(await state.transact(records.list_submissions, NAMES[0])) == 1
    assert await state.transact(records.last_sequence) == last
    await deletion.delete(NAMES[1])
    await deletion.delete_objects()
    state.close()
