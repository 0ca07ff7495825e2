import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from known_strategies import CONTROL, EVERY, FROM_THE_BOARD, settings_of

from leaderboard.evolution import STRATEGIES
from leaderboard.evolution.allocation import eliminated
from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.history import history_of
from leaderboard.evolution.strategy import Answer, Child, Continue, Fresh
from leaderboard.ranking.board import fold
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]
FOUR = {"ppo": {}, "a2c": {}, "dqn": {}, "d3qn": {}}
HALVING = {"allocation": "halving", "halving_agents": 2}


def left(population: Any) -> dict[str, str]:
    return eliminated(population.spec, population.history)


def rows_of(row: Row, scores: dict[str, list[float]], **others: Any) -> list[Any]:
    """Agents of algorithms with their scores, taking turns."""
    names = list(scores)
    turns = itertools.zip_longest(*scores.values())
    return [
        row(0, score, algorithm=name, **others)
        for turn in turns
        for name, score in zip(names, turn, strict=True)
        if score is not None
    ]


def test_an_algorithm_whose_agents_all_end_unscored_leaves(make_population: MakePopulation, row: Row) -> None:
    rows = [row(0, 1.0), row(1, algorithm="a2c"), row(2, busy=True), row(3, algorithm="a2c")]
    assert left(make_population(rows[:3], algorithms={"ppo": {}, "a2c": {}})) == {}
    population = make_population(rows, algorithms={"ppo": {}, "a2c": {}})
    assert left(population) == {"a2c": "none of its agents was ever scored, and 2 have ended"}
    rows[1].score = -5.0
    rows.append(row(4, algorithm="a2c"))
    assert left(population) == {}, "it can act: what fails now is one of its agents"


def test_an_algorithm_that_was_scored_before_the_window_stays(make_population: MakePopulation, row: Row) -> None:
    early = rows_of(row, {"ppo": [1.0], "a2c": [2.0]})
    late = [row(0, 1.0 if number % 2 else None, algorithm="ppo" if number % 2 else "a2c") for number in range(250)]
    algorithms = {"ppo": {}, "a2c": {}}
    assert left(make_population([*early, *late], algorithms=algorithms)) == {}
    assert list(left(make_population(late, algorithms=algorithms))) == ["a2c"]


def test_agents_that_still_train_have_not_failed(make_population: MakePopulation, row: Row) -> None:
    rows = [row(0, algorithm="a2c", busy=True), row(1, algorithm="a2c", busy=True), row(2, algorithm="a2c")]
    assert left(make_population(rows, algorithms={"ppo": {}, "a2c": {}})) == {}


def test_the_last_algorithm_never_leaves(make_population: MakePopulation, row: Row) -> None:
    rows = [row(number, algorithm=name) for number, name in enumerate(["ppo", "a2c"] * 3)]
    population = make_population(rows, algorithms={"ppo": {}, "a2c": {}})
    assert list(left(population)) == ["a2c"]
    assert left(make_population([row(0)] * 4, algorithms={"ppo": {}})) == {}


def test_an_algorithm_that_has_left_does_not_return(make_population: MakePopulation, row: Row) -> None:
    rows = [row(0, 1.0), row(1, 99.0, algorithm="a2c"), row(2, 1.0, left={"a2c": "long ago"})]
    assert left(make_population(rows, algorithms={"ppo": {}, "a2c": {}})) == {"a2c": "long ago"}


def test_a_halving_waits_for_as_many_agents_of_each_and_drops_the_worse_half(
    make_population: MakePopulation, row: Row
) -> None:
    scores = {"ppo": [10.0, 40.0], "a2c": [5.0, 30.0], "dqn": [35.0, 1.0], "d3qn": [20.0]}
    sections = {"algorithms": FOUR, "evolution": HALVING}
    assert left(make_population(rows_of(row, scores), **sections)) == {}
    scores["d3qn"].append(25.0)
    # The bests are 40, 30, 35 and 25.
    assert left(make_population(rows_of(row, scores), **sections)) == {
        "a2c": "halving after 2 agents of each: its best, 30 ± 0, is behind that of dqn, 35 ± 0",
        "d3qn": "halving after 2 agents of each: its best, 25 ± 0, is behind that of dqn, 35 ± 0",
    }


def test_more_agents_of_one_algorithm_do_not_help_it(make_population: MakePopulation, row: Row) -> None:
    scores = {"ppo": [10.0, 11.0], "a2c": [1.0, 2.0, 3.0, 99.0]}
    sections = {"algorithms": {"ppo": {}, "a2c": {}}, "evolution": HALVING}
    assert list(left(make_population(rows_of(row, scores), **sections))) == ["a2c"]


def test_an_algorithm_within_the_error_stays_and_is_judged_again_with_more_agents(
    make_population: MakePopulation, row: Row
) -> None:
    sections = {"algorithms": {"ppo": {}, "a2c": {}}, "evolution": HALVING}
    scores = {"ppo": [10.0, 11.0], "a2c": [9.0, 8.0]}
    assert left(make_population(rows_of(row, scores, error=2.0), **sections)) == {}
    scores = {"ppo": [10.0, 11.0, 30.0, 1.0], "a2c": [9.0, 8.0, 7.0, 6.0]}
    assert list(left(make_population(rows_of(row, scores, error=2.0), **sections))) == ["a2c"]


def test_the_next_halving_is_judged_on_agents_made_since_the_last(make_population: MakePopulation, row: Row) -> None:
    gone = {"dqn": "x", "d3qn": "y"}
    before = rows_of(row, {"ppo": [99.0, 99.0], "a2c": [1.0, 1.0]})
    since = rows_of(row, {"ppo": [5.0, 6.0], "a2c": [7.0, 8.0]}, left=gone)
    population = make_population([*before, *since], algorithms=FOUR, evolution=HALVING)
    assert left(population).keys() == {"dqn", "d3qn", "ppo"}
    assert left(make_population([*before, *since[:3]], algorithms=FOUR, evolution=HALVING)) == gone


def test_without_halving_no_algorithm_leaves_for_being_worse(make_population: MakePopulation, row: Row) -> None:
    rows = rows_of(row, {"ppo": [9.0] * 9, "a2c": [1.0] * 9})
    assert left(make_population(rows, algorithms={"ppo": {}, "a2c": {}})) == {}


def test_decisions_do_not_depend_on_the_order_of_the_history(make_population: MakePopulation, row: Row) -> None:
    scores = {"ppo": [10.0, 40.0], "a2c": [5.0, 30.0], "dqn": [35.0, 1.0], "d3qn": [20.0, 25.0]}
    population = make_population(rows_of(row, scores), algorithms=FOUR, evolution=HALVING)
    known = population.history
    shuffled = history_of(population.spec, len(known.agents), known.agents[::-1], known.submissions[::-1], [], [])
    assert eliminated(population.spec, shuffled) == left(population)


def test_the_remaining_algorithms_share_the_turns_in_their_ratios(make_population: MakePopulation) -> None:
    mix = {"ppo": {"ratio": 2}, "a2c": {"ratio": 1}, "dqn": {"ratio": 3}}
    spec = make_population([], algorithms=mix).spec
    turns = [turn_of(spec, number, {"dqn"}) for number in range(90)]
    assert Counter(turn.algorithm for turn in turns) == {"ppo": 60, "a2c": 30}
    assert not any(turn.first for turn in turns[6:]), "their first turns were before"


@pytest.mark.parametrize("strategy", EVERY)
def test_candidates_of_an_algorithm_that_has_left_have_no_children(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    rows = [row(0, 50.0), row(1, 90.0, algorithm="a2c"), row(2, 80.0, algorithm="a2c"), row(3, 40.0)]
    evolution = settings_of(strategy, initial_agents=2, fresh_probability=0.0, population_size=4, rung_factor=2.0)
    population = make_population(rows, algorithms={"ppo": {}, "a2c": {}}, evolution=evolution)
    situation = replace(population.situation({"a2c": "halved"}), board=tuple(population.history.submissions))
    answers = [STRATEGIES[strategy].propose(situation, Random(seed)) for seed in range(40)]
    descending = [one for one in answers if isinstance(one, Child | Continue)]
    assert not [one for one in descending if one.parent.algorithm == "a2c"]
    assert strategy == CONTROL or descending


@pytest.mark.parametrize("strategy", FROM_THE_BOARD)
def test_a_strategy_that_chooses_from_the_board_chooses_among_the_algorithms_that_stay(
    make_population: MakePopulation, row: Row, strategy: str
) -> None:
    rows = [row(0, 50.0), row(1, 90.0, algorithm="a2c"), row(2, 80.0, algorithm="a2c"), row(3, 40.0)]
    evolution = {"strategy": strategy, "initial_agents": 2, "fresh_probability": 0.0}
    sections = {"algorithms": {"ppo": {}, "a2c": {}}, "evolution": evolution}
    population = make_population(rows, **sections)

    def answers(board: list[Candidate], left: dict[str, str]) -> list[Answer]:
        shown = replace(population.situation(left), board=fold(board, capacity=4).board)
        return [STRATEGIES[strategy].propose(shown, Random(seed)) for seed in range(40)]

    def parents(board: list[Candidate], left: dict[str, str]) -> set[int]:
        found = answers(board, left)
        assert all(isinstance(answer, Child) for answer in found)
        return {answer.parent.agent_number for answer in found if isinstance(answer, Child)}

    members = list(population.history.submissions)
    assert {1, 2} & parents(members, {})
    assert parents(members, {"a2c": "halved"}) <= {0, 3}
    assert answers(members[1:3], {"a2c": "halved"})[0] == Fresh("no candidate on the board may have another child now")


@pytest.mark.long
@pytest.mark.parametrize("strategy", EVERY)
def test_a_failing_algorithm_leaves_and_its_turns_go_to_the_others(
    make_race: Callable[..., Any], strategy: str
) -> None:
    mix = {"ppo": {}, "a2c": {}, "dqn": {}}
    race = make_race(settings_of(strategy), algorithms=mix, failing=["dqn"], pods=2).run(60)
    agents = [generation.agent for generation in race.generations]
    failed = [agent for agent in agents if agent.algorithm == "dqn"]
    assert len(failed) <= 4
    (reason,) = [agent.reason for agent in agents if "is eliminated:" in agent.reason]
    assert reason.endswith("; dqn is eliminated: none of its agents was ever scored, and 2 have ended")
    last = Counter(agent.algorithm for agent in agents[-40:])
    assert set(last) == {"ppo", "a2c"}
    # Fresh agents alone follow the turns.
    assert strategy != CONTROL or last["ppo"] == last["a2c"]


@pytest.mark.long
@pytest.mark.parametrize("strategy", EVERY)
def test_halving_moves_agents_to_the_better_algorithm(make_race: Callable[..., Any], strategy: str) -> None:
    searched = {"learning_rate": {"low": 1e-6, "high": 1e-1, "value": 1e-3}}
    bad = {"learning_rate": 1e-6}
    mix = {"ppo": {"hyperparameters": searched}, "a2c": {"hyperparameters": bad}}
    race = make_race(settings_of(strategy) | HALVING, algorithms=mix, pods=3).run(40)
    agents = [generation.agent for generation in race.generations]
    assert {agent.algorithm for agent in agents[:6]} == {"ppo", "a2c"}
    assert {agent.algorithm for agent in agents[-16:]} == {"ppo"}
    assert sum("a2c is eliminated: halving after" in agent.reason for agent in agents) == 1
    assert list(agents[-1].left_algorithms) == ["a2c"]
