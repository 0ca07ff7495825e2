from collections.abc import Callable
from typing import Any

import pytest
from known_strategies import CONTROL, EVERY, settings_of

from leaderboard.store import records
from podrace.database import Transaction
from podrace.errors import NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, SubmitCandidateResponse
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
Tamper = Callable[[Transaction], object]
TOURNAMENT = "cartpole-abc123"


async def race_mixed(mesh: Any, spec: TournamentSpec, rounds: int) -> None:
    """Rounds of two agents; those of one algorithm are never scored at first, and some fail after a score."""
    failed: list[str] = []
    for begin in range(0, 2 * rounds, 2):
        agents: list[Agent] = []
        for number in (begin, begin + 1):
            unfinished = [agent.agent_id for agent in agents]
            agents.append(await mesh.generate(spec, number, unfinished, failed=failed))
        for attempt in (1, 2):
            for agent in agents:
                if agent.algorithm != "dqn":
                    steps = (agent.assignment_environment_steps or 2000) // 2 * attempt
                    await mesh.judge(agent, (agent.number * 7 % 5) * 10.0 + attempt, 0.5, steps=steps)
        failed += [agent.agent_id for agent in agents if agent.number % 7 == 3]


@pytest.mark.long
@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("strategy", EVERY)
async def test_every_strategy_is_replayed_from_the_database(
    mesh: Any, make_spec: MakeSpec, strategy: str, synchronous: bool
) -> None:
    evolution = settings_of(strategy, board_capacity=3, allocation="halving", population_size=4)
    rounds = {"synchronous": True, "pool": {"maximum_pods": 2}} if synchronous else {}
    await race_mixed(mesh, make_spec(evolution=evolution, algorithms={"ppo": {}, "a2c": {}, "dqn": {}}, **rounds), 14)
    generations = await mesh.state.transact(records.list_generations, TOURNAMENT)
    agents = [generation.agent for generation in generations]
    assert "dqn" in agents[-1].left_algorithms
    assert any(generation.failed is not None for generation in generations)
    assert strategy == CONTROL or len({agent.origin for agent in agents}) > 1
    assert await mesh.replay() == []


@pytest.mark.long
@pytest.mark.parametrize("synchronous", [False, True])
async def test_an_algorithm_stays_that_was_scored_before_the_window_of_the_history(
    mesh: Any, make_spec: MakeSpec, synchronous: bool
) -> None:
    rounds = {"synchronous": True, "pool": {"maximum_pods": 2}} if synchronous else {}
    spec = make_spec(evolution={"strategy": "random-search"}, algorithms={"ppo": {}, "a2c": {}}, **rounds)
    failed: list[str] = []
    for number in range(210):
        unfinished = [f"{TOURNAMENT}-a{number - 1}"] if number % 2 else []
        agent = await mesh.generate(spec, number, unfinished, failed=failed)
        assert not agent.left_algorithms
        if agent.algorithm == "ppo" or number < 2:
            await mesh.judge(agent, 1.0, 0.0)
        else:
            failed.append(agent.agent_id)
    assert await mesh.replay() == []


@pytest.fixture(params=["asynchronous", "synchronous"])
async def raced(mesh: Any, make_spec: MakeSpec, request: pytest.FixtureRequest) -> Any:
    """A mesh after five rounds of two agents with two submissions each; another tournament ran in between."""
    evolution = {"initial_agents": 2, "fresh_probability": 0.1, "board_capacity": 3}
    rounds = {"synchronous": True, "pool": {"maximum_pods": 2}} if request.param == "synchronous" else {}
    spec, other_spec = make_spec(evolution=evolution, **rounds), make_spec()
    for begin in range(0, 10, 2):
        agents: list[Agent] = []
        for number in (begin, begin + 1):
            agents.append(await mesh.generate(spec, number, [agent.agent_id for agent in agents]))
        for attempt in (1, 2):
            await mesh.judge(await mesh.generate(other_spec, begin + attempt, tournament_id="other"), 1.0, 0.0)
            for agent in agents:
                await mesh.judge(agent, (agent.number * 7 % 5) * 10.0 + attempt, 2.5)
    return mesh


async def test_a_replay_of_unaltered_records_finds_no_difference(raced: Any) -> None:
    generations = await raced.state.transact(records.list_generations, TOURNAMENT)
    assert len({generation.agent.origin for generation in generations}) > 1, "children are replayed, too"
    assert await raced.replay() == []
    assert await raced.replay("other") == []


async def test_an_unknown_tournament_cannot_be_replayed(raced: Any) -> None:
    with pytest.raises(NotFound, match="tournament 'unknown': no agent of it was ever generated here"):
        await raced.replay("unknown")


def standing(transaction: Transaction) -> None:
    transaction.execute("UPDATE submissions SET verdict = 0 WHERE sequence = 5")


def best_score(transaction: Transaction) -> None:
    change_answer(transaction, 2, lambda answer: setattr(answer, "best_score", 1000.0))


def score(transaction: Transaction) -> None:
    change_answer(transaction, 2, lambda answer: setattr(answer.candidate, "score", -1000.0))


def estimate(transaction: Transaction) -> None:
    change_answer(transaction, 2, lambda answer: setattr(answer.candidate, "estimate", -1000.0))


def owner(transaction: Transaction) -> None:
    change_answer(transaction, 2, lambda answer: setattr(answer.candidate, "agent_id", "unknown"))


def hyperparameters(transaction: Transaction) -> None:
    change_agent(transaction, 3, lambda agent: agent.hyperparameters.update({"learning_rate": 0.5}))


def parents(transaction: Transaction) -> None:
    change_agent(transaction, 9, lambda agent: agent.parent_agent_ids.append("unknown"))


def seed(transaction: Transaction) -> None:
    change_agent(transaction, 0, lambda agent: setattr(agent, "seed", 1))


def depth(transaction: Transaction) -> None:
    transaction.execute("UPDATE agents SET depth = 77 WHERE tournament_id = ? AND number = 5", TOURNAMENT)


def ended(transaction: Transaction) -> None:
    transaction.execute("UPDATE agents SET ended = generation WHERE agent_id = ?", f"{TOURNAMENT}-a5")


def change_answer(transaction: Transaction, sequence: int, change: Callable[[SubmitCandidateResponse], object]) -> None:
    ((stored,),) = transaction.execute("SELECT answer FROM submissions WHERE sequence = ?", sequence)
    answer = SubmitCandidateResponse.FromString(stored)
    change(answer)
    transaction.execute("UPDATE submissions SET answer = ? WHERE sequence = ?", answer.SerializeToString(), sequence)


def change_agent(transaction: Transaction, number: int, change: Callable[[Agent], object]) -> None:
    agent = records.get_generation(transaction, f"{TOURNAMENT}-a{number}").agent
    change(agent)
    transaction.execute("UPDATE agents SET agent = ? WHERE agent_id = ?", agent.SerializeToString(), agent.agent_id)


@pytest.mark.long
@pytest.mark.parametrize(
    ("tamper", "line"),
    [
        (standing, f"submission 5 of {TOURNAMENT}-a0 at the end: verdict was "),
        (best_score, f"submission 2 of {TOURNAMENT}-a0: best_score was 1000.0, is "),
        (score, f"submission 2 of {TOURNAMENT}-a0: "),
        (estimate, f"submission 2 of {TOURNAMENT}-a0: estimate was -1000, is "),
        (owner, "submission 2 of unknown: was judged before its agent was generated"),
        (hyperparameters, f"agent {TOURNAMENT}-a3: hyperparameters was "),
        (parents, f"agent {TOURNAMENT}-a9: parent_agent_ids was "),
        (seed, f"agent {TOURNAMENT}-a0: seed was 1, is "),
        (depth, f"agent {TOURNAMENT}-a5: depth was 77, is "),
        (ended, f"agent {TOURNAMENT}-a5: had ended before it was generated"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_an_altered_record_is_reported_in_one_line(raced: Any, tamper: Tamper, line: str) -> None:
    await raced.state.transact(tamper)
    differences = await raced.replay()
    assert any(difference.startswith(line) for difference in differences), differences
    assert not any("\n" in difference for difference in differences)


async def test_an_altered_agent_is_reported_without_its_children(raced: Any) -> None:
    generations = await raced.state.transact(records.list_generations, TOURNAMENT)
    parent_id = next(parent for generation in generations for parent in generation.agent.parent_agent_ids)
    altered = next(generation.agent.number for generation in generations if generation.agent.agent_id == parent_id)
    await raced.state.transact(
        change_agent, altered, lambda agent: agent.hyperparameters.update(dict.fromkeys(agent.hyperparameters, 0.5))
    )
    differences = await raced.replay()
    assert [difference.partition(":")[0] for difference in differences] == [f"agent {parent_id}"]
