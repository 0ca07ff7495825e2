import random
from collections.abc import Callable
from typing import Any

import pytest

from leaderboard import generation
from leaderboard.store import records
from leaderboard.store import running_agents as module
from leaderboard.store.records import Generation
from leaderboard.store.running_agents import RunningAgents
from leaderboard.trial_cache import TrialCache
from podrace.database import Database, Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


class Undone(Exception):
    """The change is undone."""


def make(transaction: Transaction, known: RunningAgents, tournament: str, number: int, others: list[str]) -> str:
    """Makes an agent as a generator does, hearing that these have not ended."""
    position = records.next_position(transaction)
    known.record_ended(transaction, tournament, others, below=number, position=position)
    agent = Agent(agent_id=f"{tournament}-a{number}", tournament_id=tournament, number=number)
    records.add_generation(transaction, Generation(agent, 0, 0, position))
    known.add(agent)
    return agent.agent_id


def make_and_undo(
    transaction: Transaction, known: RunningAgents, tournament: str, number: int, others: list[str]
) -> None:
    make(transaction, known, tournament, number, others)
    raise Undone


async def open_agents(state: Database, tournament: str) -> set[str]:
    return set(await state.transact(records.numbers_of_unfinished, tournament))


async def test_a_rollback_empties_the_cache(mesh: Any) -> None:
    known, transact = RunningAgents(), mesh.state.transact
    first = await transact(make, known, "one", 0, [])
    with pytest.raises(Undone):
        await transact(make_and_undo, known, "one", 1, [])
    second = await transact(make, known, "one", 1, [first])
    assert await open_agents(mesh.state, "one") == {first, second}


async def test_a_rollback_empties_the_cache_even_if_another_tournament_took_its_position(mesh: Any) -> None:
    known, transact = RunningAgents(), mesh.state.transact
    first = await transact(make, known, "one", 0, [])
    with pytest.raises(Undone):
        await transact(make_and_undo, known, "one", 1, [])
    await transact(make, known, "two", 0, [])
    await transact(make, known, "one", 1, [])
    assert await open_agents(mesh.state, "one") == {"one-a1"}
    generation = await transact(records.get_generation, first)
    assert generation.ended == 3


async def test_the_cache_equals_what_a_restart_reads(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOURNAMENTS", 2)
    draw = random.Random(1)
    known, transact = RunningAgents(), mesh.state.transact
    expected: dict[str, set[str]] = {name: set() for name in ("one", "two", "three")}
    for step in range(200):
        name = draw.choice(sorted(expected))
        staying = {agent for agent in expected[name] if draw.random() < 0.7}
        work: Callable[..., Any] = make if draw.random() < 0.8 else make_and_undo
        others = [*staying, "unknown"]
        try:
            made = await transact(work, known, name, step, others)
        except Undone:
            continue
        expected[name] = {*staying, made}
        assert await open_agents(mesh.state, name) == expected[name]


def generate_and_undo(transaction: Transaction, request: GenerateAgentRequest, caches: generation.Caches) -> None:
    generation.generate(transaction, request, caches)
    raise Undone


@pytest.mark.parametrize("lost", ["one", "two"])
async def test_an_agent_that_is_recorded_again_at_the_position_of_a_rollback_empties_the_cache(
    mesh: Any, make_spec: Callable[..., TournamentSpec], lost: str
) -> None:
    spec, transact = make_spec(), mesh.state.transact
    caches = generation.Caches(RunningAgents(), TrialCache())

    def request(number: int, tournament: str = "one", agent: Agent | None = None) -> GenerateAgentRequest:
        return GenerateAgentRequest(tournament_id=tournament, spec=spec, number=number, agent=agent)

    first, _ = await transact(generation.generate, request(0), caches)
    with pytest.raises(Undone):
        await transact(generate_and_undo, request(2), caches)
    known = Agent(agent_id=f"{lost}-a1", tournament_id=lost, number=1)
    await transact(generation.record_again, request(1, lost, known), caches)
    await transact(generation.generate, request(3), caches)
    ended = await transact(records.get_generation, first.agent_id)
    assert ended.ended == 3
    assert await open_agents(mesh.state, "one") == {"one-a3"}
