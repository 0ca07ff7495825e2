from typing import Any

import pytest

from orchestrator.pool import resizes
from orchestrator.state import resize_records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.resize_records import ResizePhase, ResizeRecord


def recorded(number: int, phase: ResizePhase) -> ResizeRecord:
    return ResizeRecord(f"t-p{number}", "t", f"t-p{number - 1}", "t-a0", phase, number, float(number), None)


async def save(state: StateDatabase, *saved: ResizeRecord) -> None:
    for resize in saved:
        await state.transact(resize_records.save, resize)


async def queries_of_a_cycle(state: StateDatabase, monkeypatch: pytest.MonkeyPatch) -> int:
    executed: list[str] = []
    execute = Transaction.execute

    def recording(transaction: Transaction, statement: str, *values: object) -> Any:
        executed.append(statement)
        return execute(transaction, statement, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "execute", recording)
        await state.transact(resizes.abandon_failed, "t")
    return len(executed)


async def test_a_cycle_makes_as_many_queries_whatever_the_number_of_finished_resizes(
    state: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await save(state, recorded(1, ResizePhase.DONE))
    queries = await queries_of_a_cycle(state, monkeypatch)
    await save(state, *(recorded(number, ResizePhase.DONE) for number in range(2, 20)))
    await save(state, *(recorded(number, ResizePhase.ABANDONED) for number in range(20, 30)))
    assert await queries_of_a_cycle(state, monkeypatch) == queries


@pytest.mark.parametrize("phase", list(ResizePhase))
async def test_only_resizes_under_way_are_abandoned_when_their_new_pod_is_gone(
    state: StateDatabase, phase: ResizePhase
) -> None:
    await save(state, recorded(1, ResizePhase.DONE), recorded(2, phase))
    under_way = await state.transact(resize_records.under_way, "t")
    assert [one.pod_id for one in under_way] == (["t-p2"] if recorded(2, phase).under_way else [])
    found = await state.transact(resizes.abandon_failed, "t")
    expected = ResizePhase.ABANDONED if under_way else phase
    assert [one.phase for one in found] == [ResizePhase.DONE, expected]
