from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from known_strategies import EVERY, settings_of

from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.agents import needs_history
from leaderboard.evolution.history import NOTHING, history_of, window_begin
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakePopulation = Callable[..., Any]
Row = Callable[..., Any]


@pytest.mark.parametrize("strategy", EVERY)
def test_a_strategy_reads_the_history_if_and_only_if_it_declares_it(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    evolution = settings_of(strategy, population_size=4, initial_agents=4, fresh_probability=0.0)
    situation = make_population([row(seat % 4, float(seat)) for seat in range(8)], evolution=evolution).situation()
    without = replace(situation, history=NOTHING)
    propose, declared = STRATEGIES[strategy].propose, STRATEGIES[strategy].reads_history
    assert (propose(situation, Random(0)) == propose(without, Random(0))) != declared
    assert needs_history(situation.spec) == declared


def test_the_history_is_read_if_an_algorithm_may_leave_the_draw(make_spec: MakeSpec) -> None:
    assert needs_history(make_spec(algorithms={"ppo": {}, "a2c": {}}))
    assert not needs_history(make_spec(algorithms={"ppo": {}}))


def test_the_history_is_a_window(make_population: MakePopulation, row: Row) -> None:
    population = make_population([row(seat, 1.0) for seat in range(6)], evolution={"strategy": "truncation"})
    known = population.history
    assert window_begin(population.spec, 203, 100) == 3
    seen = history_of(population.spec, 203, known.agents, known.submissions, [known.agents[0].agent_id], [])
    assert [agent.number for agent in seen.agents] == [3, 4, 5]
    assert [candidate.agent_number for candidate in seen.submissions] == [3, 4, 5]
    assert not seen.unfinished
    population.spec.evolution.population_size = 500
    assert window_begin(population.spec, 2003, 0) == 3


def test_the_window_has_twice_as_many_agents_as_are_in_training(make_spec: MakeSpec) -> None:
    assert window_begin(make_spec(), 603, 300) == 3
    # The unfinished agents of a round depend on which pod was faster.
    rounds = make_spec(synchronous=True, pool={"maximum_pods": 300})
    assert window_begin(rounds, 603, 0) == 3


def test_a_synchronous_generator_knows_the_scores_of_earlier_rounds_only(
    make_population: MakePopulation, row: Row
) -> None:
    population = make_population([row(seat, 1.0) for seat in range(6)], synchronous=True, pool={"maximum_pods": 4})
    known = population.history
    assert [candidate.agent_number for candidate in known.submissions] == [0, 1, 2, 3]
    assert [agent.number for agent in known.agents] == [0, 1, 2, 3, 4, 5]


def test_the_last_submission_is_that_of_the_latest_arrival(make_population: MakePopulation, row: Row) -> None:
    population = make_population([row(0, 1.0)])
    first = population.history.submissions[0]
    later = type(first)()
    later.CopyFrom(first)
    later.candidate_id, later.sequence = "later", 7
    agents = population.history.agents
    for listed in ([first, later], [later, first]):
        assert history_of(population.spec, 1, agents, listed, [], []).last[first.agent_id] == later


@pytest.mark.parametrize(
    ("busy", "failed", "score", "expected"), [(False, True, 1.0, True), (False, False, None, True)]
)
def test_an_agent_has_failed_if_reported_or_without_a_score(
    make_population: MakePopulation, row: Row, busy: bool, failed: bool, score: float | None, expected: bool
) -> None:
    history = make_population([row(0, score, busy=busy, failed=failed)]).history
    assert history.has_failed(history.agents[0]) is expected
    training = make_population([row(0, None, busy=True)]).history
    assert not training.has_failed(training.agents[0])
