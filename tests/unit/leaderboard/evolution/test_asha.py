"""What a pod gets that asks for work: a promotion, a new trial, or nothing."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from trial_log import QUANTUM, Log, kind_of

from leaderboard.evolution.strategy import Continue, Fresh, NoWork
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_CONTINUATION, ORIGIN_FRESH

MakeLog = Callable[..., Log]
MakeRace = Callable[..., Any]


@pytest.fixture
def make_ladder(make_log: MakeLog) -> MakeLog:
    def make(**settings: Any) -> Log:
        return make_log(**{"strategy": "asha", "initial_agents": 1, **settings})

    return make


@pytest.fixture
def log(make_ladder: MakeLog) -> Log:
    return make_ladder()


def promoted(answer: object) -> tuple[int, int | None, int]:
    """Number of the trial that an answer continues, the rung it climbs to, and the quanta of the assignment."""
    assert isinstance(answer, Continue), answer
    return answer.parent.trial, answer.rung, answer.environment_steps // QUANTUM


def trials_at_first_rung(log: Log, *scores: float) -> None:
    for score in scores:
        log.finished(log.fresh(), score, score)


# --- fresh trials ------------------------------------------------------------------------------------------------


def test_a_new_trial_trains_to_the_first_rung(log: Log) -> None:
    answer = log.next()
    assert isinstance(answer, Fresh)
    assert (answer.environment_steps, answer.rung) == (2 * QUANTUM, 0)


def test_the_first_trial_of_each_algorithm_has_the_values_of_the_specification(make_race: MakeRace) -> None:
    rates = {"learning_rate": {"low": 1e-5, "high": 1e-1, "value": 3e-4}}
    algorithms = {"ppo": {"hyperparameters": rates}, "a2c": {"hyperparameters": rates}}
    race = make_race({"strategy": "asha"}, algorithms=algorithms, pods=2).run(12)
    fresh = [one.agent for one in race.generations if one.agent.origin == ORIGIN_FRESH]
    for name in algorithms:
        values = [one.hyperparameters["learning_rate"] for one in fresh if one.algorithm == name]
        assert values[0] == 3e-4
        assert 3e-4 not in values[1:]
        assert len(values) > 1


def test_the_first_trials_have_the_values_that_are_known_to_be_good(make_race: MakeRace) -> None:
    starts = [{"learning_rate": 1e-4}, {"learning_rate": 2e-4}, {"learning_rate": 3e-4}, {"learning_rate": 4e-4}]
    rates = {"learning_rate": {"low": 1e-5, "high": 1e-1}}
    algorithms = {"ppo": {"starts": starts, "hyperparameters": rates}}
    race = make_race({"strategy": "asha", "initial_agents": 1}, algorithms=algorithms, pods=1).run(8)
    fresh = [one.agent for one in race.generations if one.agent.origin == ORIGIN_FRESH]
    assert [one.hyperparameters["learning_rate"] for one in fresh[:4]] == [1e-4, 2e-4, 3e-4, 4e-4]
    # The fourth agent was a promotion.
    assert [one.agent.origin for one in race.generations[:4]] == [ORIGIN_FRESH] * 3 + [ORIGIN_CONTINUATION]


def test_the_first_agents_are_fresh_even_if_a_trial_could_be_promoted(make_ladder: MakeLog) -> None:
    log = make_ladder(initial_agents=4)
    trials_at_first_rung(log, 10.0, 30.0, 20.0)
    answer = log.next()
    assert isinstance(answer, Fresh)
    assert answer.reason == "one of the first 4"
    trials_at_first_rung(log, 5.0)
    assert promoted(log.next()) == (1, 1, 4)


def test_a_new_trial_has_the_algorithm_that_is_furthest_below_its_share_of_pod_time(make_ladder: MakeLog) -> None:
    log = make_ladder(algorithms={"ppo": {}, "a2c": {}, "sac": {"ratio": 2.0}})
    for name, quanta in (("ppo", 6), ("a2c", 2), ("sac", 6)):
        log.finished(log.fresh(name), *[1.0] * quanta)
    # Shares of 140 s are 35 s, 35 s and 70 s; they have taken 60 s, 20 s and 60 s.
    answer = log.next()
    assert isinstance(answer, Fresh)
    assert answer.algorithm == "a2c"
    # Shares of 120 s are 40 s and 80 s.
    without = log.next(left={"a2c": "its agents failed"})
    assert isinstance(without, Fresh)
    assert without.algorithm == "sac"


def test_every_agent_is_fresh_or_continues_a_trial(make_race: MakeRace) -> None:
    race = make_race({"strategy": "asha"}, pods=3, noise=2.0).run(60)
    origins = Counter(one.agent.origin for one in race.generations)
    assert set(origins) == {ORIGIN_FRESH, ORIGIN_CONTINUATION}
    assert 0 < origins[ORIGIN_CONTINUATION] < origins[ORIGIN_FRESH]


# --- promotions --------------------------------------------------------------------------------------------------


def test_one_in_three_of_a_rung_is_promoted_the_best_first(log: Log) -> None:
    trials_at_first_rung(log, 10.0, 30.0)
    assert kind_of(log.next()) == "fresh", "a third of two is none"
    trials_at_first_rung(log, 20.0)
    answer = log.next()
    assert promoted(answer) == (1, 1, 4)
    assert "promoted from rung 0 to 1" in answer.reason
    assert "is among the best 1 of 3" in answer.reason
    log.again(log.agents[1], rung=1)
    assert kind_of(log.next()) == "fresh", "the quota of this rung is used"


def test_nine_trials_promote_three_and_these_one(log: Log) -> None:
    trials_at_first_rung(log, *[10.0 * number for number in range(1, 10)])
    order = []
    while isinstance(answer := log.next(), Continue):
        number, rung, quanta = promoted(answer)
        order.append((number, rung))
        log.finished(log.again(log.agents[number], rung=rung), *[100.0 + number] * quanta)
    # Rungs end at 2, 6 and 18 quanta. The best of rung 1 continues as soon as three have reached it.
    assert order == [(8, 1), (7, 1), (6, 1), (8, 2)]
    assert log.race.by_number[8].environment_steps == 18 * QUANTUM


def test_a_waiting_trial_is_promoted_once_enough_worse_trials_have_arrived(log: Log) -> None:
    trials_at_first_rung(log, 10.0, 20.0, 30.0)
    log.again(log.agents[2], rung=1)
    for _ in range(3):
        assert kind_of(log.next()) == "fresh"
        trials_at_first_rung(log, 1.0)
    assert promoted(log.next()) == (1, 1, 4), "two of six are promoted"


def test_a_new_best_is_promoted_at_once_although_the_earlier_one_has_used_the_quota(log: Log) -> None:
    trials_at_first_rung(log, 10.0, 20.0, 30.0)
    log.again(log.agents[2], rung=1)
    trials_at_first_rung(log, 40.0)
    assert promoted(log.next()) == (4, 1, 4)


def test_the_highest_rung_with_a_promotion_goes_first(log: Log) -> None:
    trials_at_first_rung(log, 10.0, 20.0, 30.0)
    for agent in log.agents[:3]:
        log.finished(log.again(agent, rung=1), *[40.0 + agent.number] * 4)
    trials_at_first_rung(log, 50.0, 60.0, 70.0)
    assert promoted(log.next()) == (2, 2, 12)


def test_a_trial_that_failed_or_whose_algorithm_has_left_is_not_promoted(make_ladder: MakeLog) -> None:
    log = make_ladder(algorithms={"ppo": {}, "a2c": {}})
    for name in ("ppo", "a2c"):
        for score in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
            log.finished(log.fresh(name), score, score)
    assert promoted(log.next(left={"a2c": "halved"}))[0] == 5
    for _ in range(2):
        log.end(log.again(log.agents[5], rung=1), failed=True)
    assert promoted(log.next(left={"a2c": "halved"}))[0] == 4


def test_an_algorithm_that_learns_slowly_has_its_own_promotions_at_first(make_ladder: MakeLog) -> None:
    log = make_ladder(algorithms={"ppo": {}, "a2c": {}})
    for name, level in (("ppo", 100.0), ("a2c", 0.0)):
        for score in (1.0, 2.0, 3.0):
            log.finished(log.fresh(name), level + score, level + score)
    found = set()
    for _ in range(2):
        number, rung, quanta = promoted(log.next())
        found.add(log.agents[number].algorithm)
        log.finished(log.again(log.agents[number], rung=rung), *[1.0] * quanta)
    assert found == {"ppo", "a2c"}


# --- the end of the clock ----------------------------------------------------------------------------------------


def test_the_best_that_waits_continues_once_a_new_trial_would_come_too_late(log: Log) -> None:
    trials_at_first_rung(log, 10.0, 20.0, 30.0)
    # The best has trained for 18 quanta, which is 180 s, and trains on.
    best = log.finished(log.again(log.agents[2], rung=1), *[50.0] * 4)
    best = log.finished(log.again(best, rung=2), *[60.0] * 12)
    log.again(best, rung=3)
    log.seconds = 819.0
    assert kind_of(log.next()) == "fresh"
    log.seconds = 821.0
    answer = log.next()
    assert promoted(answer) == (1, 1, 4), "the second, although its rung promotes none"
    assert "a new trial could not train as long as the best has" in answer.reason
    log.again(log.agents[1], rung=1)
    assert promoted(log.next())[0] == 0
    log.again(log.agents[0], rung=1)
    assert kind_of(log.next()) == "fresh", "no trial waits"


def test_the_end_does_not_matter_while_it_is_unknown(log: Log) -> None:
    trials_at_first_rung(log, 10.0, 20.0, 30.0)
    best = log.finished(log.again(log.agents[2], rung=1), *[50.0] * 4)
    log.again(log.finished(log.again(best, rung=2), *[60.0] * 12), rung=3)
    log.seconds, log.horizon = 1e6, float("inf")
    assert kind_of(log.next()) == "fresh"


def test_nothing_is_started_that_could_not_be_scored_before_the_end(log: Log) -> None:
    trials_at_first_rung(log, 10.0)
    # A quantum takes 10 s, and the last evaluation 2 s.
    log.seconds = 987.0
    assert kind_of(log.next()) == "continue"
    log.seconds = 989.0
    assert isinstance(log.next(), NoWork)


def test_a_short_tournament_reserves_a_tenth_of_its_clock_for_the_last_evaluation(log: Log) -> None:
    log.horizon = 15.0
    trials_at_first_rung(log, 10.0)
    # A quantum takes 10 s, and the last evaluation 1.5 s.
    log.seconds = 3.4
    assert kind_of(log.next()) == "continue"
    log.seconds = 3.6
    assert isinstance(log.next(), NoWork)


def test_a_step_budget_reserves_no_time_for_the_last_evaluation(make_ladder: MakeLog) -> None:
    log = make_ladder(sections={"objective": {"environment_steps": 100_000}})
    trials_at_first_rung(log, 10.0)
    log.seconds = 989.0
    assert kind_of(log.next()) == "continue"
    log.seconds = 991.0
    assert isinstance(log.next(), NoWork)
