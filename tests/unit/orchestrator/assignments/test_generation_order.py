"""Which agents are generated before one is handed out, and what the generator is told of the others."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from orchestrator.assignments.service import generation_order
from orchestrator.state.records import AgentRecord, WorkPhase
from podrace.leaderboard.v1.leaderboard_pb2 import Agent


def unfinished(*made: bool) -> dict[str, AgentRecord]:
    """Agents in order, those that were made already and those that were not."""
    return {
        f"t-a{number}": AgentRecord(
            f"t-a{number}", "t", number, WorkPhase.UNFINISHED, 0, "", "", 0, Agent() if done else None
        )
        for number, done in enumerate(made)
    }


def order(agents: dict[str, AgentRecord], number: int, *, synchronous: bool) -> list[tuple[str, list[str]]]:
    found = generation_order(agents, agents[f"t-a{number}"], synchronous=synchronous)
    return [(agent.agent_id, others) for agent, others in found]


def test_an_agent_alone_is_generated_with_all_the_others_known() -> None:
    agents = unfinished(True, False, False)
    assert order(agents, 1, synchronous=False) == [("t-a1", ["t-a0", "t-a2"])]


@pytest.mark.parametrize("asked_for", [1, 3])
def test_a_round_is_generated_in_order_with_only_the_earlier_ones_known(asked_for: int) -> None:
    agents = unfinished(True, False, True, False)
    assert order(agents, asked_for, synchronous=True) == [("t-a1", ["t-a0"]), ("t-a3", ["t-a0", "t-a1", "t-a2"])]


def test_a_round_is_generated_whatever_becomes_of_its_agents_meanwhile() -> None:
    agents = unfinished(False, False, False)
    told = []
    for agent, others in generation_order(agents, agents["t-a0"], synchronous=True):
        told.append((agent.number, len(others)))
        agents[agent.agent_id] = replace(agent, agent=Agent())
        agents.pop("t-a0", None)
    assert told == [(0, 0), (1, 1), (2, 2)]


def test_a_round_of_many_is_not_a_table_of_its_size_squared() -> None:
    agents = unfinished(*[False] * 1000)
    gc.collect()
    tracemalloc.start()
    try:
        told = sum(len(others) for _, others in generation_order(agents, agents["t-a0"], synchronous=True))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told == 1000 * 999 // 2
    # A row of it has 8 kB.
    assert most_bytes < 100_000
