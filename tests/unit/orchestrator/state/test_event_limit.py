"""The number of events of a tournament is limited; what explains its result stays."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decisions.event_retention import RESULT_KINDS
from orchestrator.state import records
from orchestrator.state.database import DATABASE_FORMAT, StateDatabase, Transaction
from orchestrator.state.records import EventRecord
from podrace.database import Database
from podrace.errors import FailedPrecondition

MOST = 100


@pytest.fixture
async def limited(tmp_path: Path, clock: Any) -> AsyncIterator[StateDatabase]:
    opened = StateDatabase(Database.open(tmp_path / "o.sqlite", DATABASE_FORMAT, clock.wall), most_events=MOST)
    yield opened
    opened.close()


def record(transaction: Transaction, kind: str, tournament_id: str = "t", count: int = 1, **ids: str) -> None:
    for number in range(count):
        transaction.record_event(kind, f"{kind} {number}", tournament_id=tournament_id, **ids)


async def kinds(state: StateDatabase, tournament_id: str = "t") -> Counter[str]:
    found = await state.transact(records.select, EventRecord, "tournament_id = ? ORDER BY sequence", tournament_id)
    return Counter(one.kind for one in found)


async def test_the_oldest_of_the_frequent_kinds_go_first_and_the_limit_holds(limited: StateDatabase) -> None:
    await limited.transact(record, "tournament_updated", count=3)
    for _ in range(5):
        await limited.transact(record, "pod_died", count=MOST)
        assert (await kinds(limited)).total() <= MOST
    assert (await kinds(limited))["tournament_updated"] == 3
    found = await limited.transact(records.select, EventRecord, "true ORDER BY sequence")
    sequences = [one.sequence for one in found]
    assert sequences[3:] == list(range(sequences[3], sequences[3] + len(sequences) - 3))


async def test_other_kinds_go_when_no_frequent_one_is_left(limited: StateDatabase) -> None:
    await limited.transact(record, "pod_died", count=10)
    await limited.transact(record, "agent_generated", count=3 * MOST)
    found = await kinds(limited)
    assert found["pod_died"] == 0
    assert found["agent_generated"] <= MOST


async def test_what_explains_the_result_is_never_deleted(limited: StateDatabase) -> None:
    for kind in sorted(RESULT_KINDS):
        await limited.transact(record, kind, count=20)
    await limited.transact(record, "pod_died", count=2 * MOST)
    found = await kinds(limited)
    assert {kind: found[kind] for kind in RESULT_KINDS} == dict.fromkeys(RESULT_KINDS, 20)
    assert found["pod_died"] <= 2


async def test_the_pods_that_have_trained_an_agent_are_remembered(limited: StateDatabase) -> None:
    for pod_id in ("p0", "p1"):
        await limited.transact(record, "agent_assigned", agent_id="a1", pod_id=pod_id, count=5)
    await limited.transact(record, "pod_died", count=5 * MOST)
    assert await limited.transact(records.pods_of_agent, "t", "a1") == ["p0", "p1"]
    assert (await kinds(limited))["agent_assigned"] == 2


async def test_each_tournament_has_its_own_limit(limited: StateDatabase) -> None:
    await limited.transact(record, "pod_died", "quiet", count=MOST)
    await limited.transact(record, "pod_died", "loud", count=5 * MOST)
    assert (await kinds(limited, "quiet")).total() == MOST


async def test_events_of_a_change_that_failed_do_not_count(limited: StateDatabase) -> None:
    def fail(transaction: Transaction) -> None:
        record(transaction, "pod_died", count=MOST - 1)
        raise FailedPrecondition("no")

    await limited.transact(record, "pod_started")
    for _ in range(3):
        with pytest.raises(FailedPrecondition):
            await limited.transact(fail)
    await limited.transact(record, "pod_died", count=MOST - 1)
    assert (await kinds(limited)).total() == MOST


async def test_events_of_an_earlier_run_count(tmp_path: Path, clock: Any) -> None:
    for _ in range(3):
        database = Database.open(tmp_path / "o.sqlite", DATABASE_FORMAT, clock.wall)
        state = StateDatabase(database, most_events=MOST)
        await state.transact(record, "pod_died", count=MOST // 2 + 1)
        found = (await kinds(state)).total()
        state.close()
    assert MOST * 0.98 <= found <= MOST


async def test_a_limit_of_zero_keeps_all(tmp_path: Path, clock: Any) -> None:
    state = StateDatabase(Database.open(tmp_path / "o.sqlite", DATABASE_FORMAT, clock.wall), most_events=0)
    await state.transact(record, "pod_died", count=3 * MOST)
    assert (await kinds(state)).total() == 3 * MOST
    state.close()
