from typing import Any

from orchestrator.assignments.transactions import save_generated_agent
from orchestrator.state import records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import AgentRecord, WorkPhase
from podrace.leaderboard.v1.leaderboard_pb2 import Agent


async def kept(state: StateDatabase, number: int, left: dict[str, str], tournament_id: str = "t") -> None:
    """An agent's number is committed, then the agent arrives."""
    name = f"{tournament_id}-a{number}"
    row = AgentRecord(name, tournament_id, number, WorkPhase.UNFINISHED, 1, "p0", "life", 0, None)
    await state.transact(records.save, row)
    made = Agent(agent_id=name, tournament_id=tournament_id, number=number, reason="fresh", left_algorithms=left)
    await state.transact(save_generated_agent, made)
    await state.transact(save_generated_agent, made)


def departures(transaction: Transaction) -> list[tuple[Any, ...]]:
    return transaction.execute(
        "SELECT tournament_id, agent_id, message FROM events WHERE kind = 'algorithm_left' ORDER BY sequence"
    )


async def test_an_algorithm_that_leaves_the_draw_is_told_once_with_the_reason(state: StateDatabase) -> None:
    await kept(state, 0, {})
    assert await state.transact(departures) == []
    halved = {"a2c": "halving after 2 agents of each: its best, 5 ± 0, is behind that of ppo, 9 ± 0"}
    await kept(state, 2, halved)
    await kept(state, 1, {})
    await kept(state, 3, halved)
    told = "a2c leaves the draw: halving after 2 agents of each: its best, 5 ± 0, is behind that of ppo, 9 ± 0"
    assert await state.transact(departures) == [
        ("t", "t-a2", f"{told}; its pods get agents of the others as theirs end")
    ]
    await kept(state, 4, halved | {"a2c-lstm": "none of its agents was ever scored, and 2 have ended"})
    assert [row[1] for row in await state.transact(departures)] == ["t-a2", "t-a4"]
    await kept(state, 0, halved, tournament_id="u")
    assert [row[0] for row in await state.transact(departures)] == ["t", "t", "u"]
