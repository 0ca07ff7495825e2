"""Tests which agents are generated before one is assigned, and which other agents the generator is given."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from orchestrator.assignments.service import generation_order
from orchestrator.state.records import AgentRecord, WorkPhase
from podrace.leaderboard.v1.leaderboard_pb2 import Agent


def unfinished(*made: bool) -> dict[str, AgentRecord]:
    """Agents in order; `made` says which of them are generated already."""
    return {
        f"t-a{number}": AgentRecord(
            f"t-a{number}", "t", number, WorkPhase.UNFINISHED, 0, "", "", 0, Agent() if done else None
        )
        for number, done in enumerate(made)
    }


def order(agents: dict[str, AgentRecord], number: int, *, synchronous: bool) -> list[tuple[str, list[str]]]:
    found = generation_order(agents, agents[f"t-a{number}"], synchronous=synchronous)
    return [(agent.agent_id, others) for agent, others in found]


def test_a_single_agent_is_generated_with_the_ids_of_all_other_unfinished_agents() -> None:
    agents = unfinished(True, False, False)
    assert order(agents, 1, synchronous=False) == [("t-a1", ["t-a0", "t-a2"])]


@pytest.mark.parametrize("asked_for", [1, 3])
def test_a_round_is_generated_in_order_and_each_agent_knows_only_the_earlier_ones(asked_for: int) -> None:
    agents = unfinished(True, False, True, False)
    assert order(agents, asked_for, synchronous=True) == [("t-a1", ["t-a0"]), ("t-a3", ["t-a0", "t-a1", "t-a2"])]


def test_a_round_is_generated_completely_while_its_agents_change() -> None:
    agents = unfinished(False, False, False)
    generated = []
    for agent, others in generation_order(agents, agents["t-a0"], synchronous=True):
        generated.append((agent.number, len(others)))
        agents[agent.agent_id] = replace(agent, agent=Agent())
        agents.pop("t-a0", None)
    assert generated == [(0, 0), (1, 1), (2, 2)]


def test_the_memory_of_a_large_round_does_not_grow_quadratically() -> None:
    agents = unfinished(*[False] * 1000)
    gc.collect()
    tracemalloc.start()
    try:
        listed = sum(len(others) for _, others in generation_order(agents, agents["t-a0"], synchronous=True))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert listed == 1000 * 999 // 2
    # The longest of these lists takes 8 kB.
    assert most_bytes < 100_000
