from collections.abc import Callable
from typing import Any

from leaderboard.evolution.history import history_of
from leaderboard.evolution.populations.seats import next_seat, seats_of

MakePopulation = Callable[..., Any]
Row = Callable[..., Any]


def test_the_first_agents_take_the_seats_in_order(make_population: MakePopulation, row: Row) -> None:
    assert next_seat(make_population([]).seats(), 3) == (0, None)
    assert next_seat(make_population([row(0), row(1)]).seats(), 3) == (2, None)


def test_later_agents_take_the_free_seat_with_the_fewest_agents(make_population: MakePopulation, row: Row) -> None:
    seats = make_population([row(0, 1.0), row(1, 1.0), row(2, 1.0), row(1, 1.0)]).seats()
    assert next_seat(seats, 3) == (0, seats[0])
    seats = make_population([row(0, busy=True), row(1, 1.0), row(2, 1.0), row(1, 1.0)]).seats()
    assert next_seat(seats, 3) == (2, seats[2])


def test_a_seat_that_waited_longer_comes_first_and_a_new_one_need_not_catch_up(
    make_population: MakePopulation, row: Row
) -> None:
    # All have had two agents since seat 2 was new, except seat 1, which was busy.
    rows = [row(0, 1.0), row(0, 1.0), row(1, 1.0), row(2, 1.0), row(0, 1.0), row(0, 1.0), row(2, 1.0)]
    seats = make_population(rows).seats()
    assert next_seat(seats, 3) == (1, seats[1])
    seats = make_population([*rows, row(1, 1.0), row(1, 1.0)]).seats()
    assert next_seat(seats, 3) == (0, seats[0])


def test_an_agent_without_a_free_seat_adds_one(make_population: MakePopulation, row: Row) -> None:
    seats = make_population([row(0, busy=True), row(1, busy=True)]).seats()
    assert next_seat(seats, 2) == (2, None)


def test_an_agent_of_a_later_number_keeps_its_seat_busy(make_population: MakePopulation, row: Row) -> None:
    population = make_population([row(0, 1.0), row(1, 1.0), row(0, 1.0)])
    late = population.history
    assert not any(seat.busy for seat in population.seats())
    # Seen from agent 1, whose request came late, agent 2 may well still train.
    seen = history_of(population.spec, 1, late.agents, late.submissions, [], [])
    assert [seat.busy for seat in seats_of(seen)] == [True, True]


def test_a_seat_remembers_its_agents_and_the_last_score_of_each(make_population: MakePopulation, row: Row) -> None:
    population = make_population([row(0, 1.0, steps=100), row(0, 3.0, steps=200), row(0, busy=True)])
    (seat,) = population.seats()
    assert [agent.number for agent in seat.agents] == [0, 1, 2]
    assert [candidate.score for candidate in seat.scored] == [1.0, 3.0]
    assert (seat.busy, seat.failed, seat.newest) == (True, False, seat.scored[1])
    assert seat.newest_within(199) == seat.scored[0]
    assert seat.newest_within(200) == seat.scored[1]
    assert seat.newest_within(99) is None


def test_an_agent_that_ended_without_a_score_has_failed(make_population: MakePopulation, row: Row) -> None:
    unscored, reported, fine = make_population([row(0), row(1, 1.0, failed=True), row(2, 1.0)]).seats()
    assert [unscored.failed, reported.failed, fine.failed] == [True, True, False]


def test_scores_of_another_algorithm_do_not_count_for_the_seat(make_population: MakePopulation, row: Row) -> None:
    mixed = {"ppo": {}, "a2c": {}}
    (seat,) = make_population([row(0, 1.0), row(0, busy=True, algorithm="a2c")], algorithms=mixed).seats()
    assert seat.algorithm == "a2c"
    assert seat.newest is None
    assert seat.newest_within(10**9) is None
