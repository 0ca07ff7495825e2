from typing import Any

from orchestrator.assignments.transactions import save_generated_agent
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import AgentRecord, WorkPhase
from podrace.leaderboard.v1.leaderboard_pb2 import Agent


async def save_generated(state: StateDatabase, number: int, left: dict[str, str], tournament_id: str = "t") -> None:
    """Commits an agent's number, then stores the generated agent twice."""
    name = f"{tournament_id}-a{number}"
    row = AgentRecord(name, tournament_id, number, WorkPhase.UNFINISHED, 1, "p0", "run", 0, None)
    await state.transact(records.save, row)
    made = Agent(agent_id=name, tournament_id=tournament_id, number=number, reason="fresh", left_algorithms=left)
    await state.transact(save_generated_agent, made)
    await state.transact(save_generated_agent, made)


def departures(transaction: Transaction) -> list[tuple[Any, ...]]:
    return transaction.execute(
        "SELECT tournament_id, agent_id, message FROM events WHERE kind = 'algorithm_left' ORDER BY sequence"
    )


async def test_an_algorithm_that_leaves_the_draw_is_recorded_once_with_the_reason(state: StateDatabase) -> None:
    await save_generated(state, 0, {})
    assert await state.transact(departures) == []
    halved = {"a2c": "halving after 2 agents of each: its best, 5 ± 0, is behind that of ppo, 9 ± 0"}
    await save_generated(state, 2, halved)
    await save_generated(state, 1, {})
    await save_generated(state, 3, halved)
    reason = "a2c is eliminated: halving after 2 agents of each: its best, 5 ± 0, is behind that of ppo, 9 ± 0"
    assert await state.transact(departures) == [
        ("t", "t-a2", f"{reason}; its pods get other algorithms when their agents finish")
    ]
    await save_generated(state, 4, halved | {"a2c-lstm": "none of its agents was ever scored, and 2 have ended"})
    assert [row[1] for row in await state.transact(departures)] == ["t-a2", "t-a4"]
    await save_generated(state, 0, halved, tournament_id="u")
    assert [row[0] for row in await state.transact(departures)] == ["t", "t", "u"]
