"""Rungs: how long they are, who is compared on them, and which algorithm the next fresh trial has."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from trial_log import QUANTUM, Log

from leaderboard.evolution.rungs import algorithm_by_time, quota_of, rung_steps
from leaderboard.evolution.strategy import Situation
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

MakeLog = Callable[..., Log]


@pytest.fixture
def make_ladder(make_log: MakeLog) -> Callable[..., Log]:
    """Logs of the strategy `asha`, which has rungs and nothing else."""

    def make(**settings: object) -> Log:
        return make_log(strategy="asha", **settings)

    return make


def test_rungs_grow_by_the_factor_in_whole_quanta() -> None:
    thirds = EvolutionSpec(first_rung=2, rung_factor=3.0)
    assert [rung_steps(thirds, QUANTUM, rung) // QUANTUM for rung in range(4)] == [2, 6, 18, 54]
    # 1, 1.5, 2.25, 3.375
    halves = EvolutionSpec(first_rung=1, rung_factor=1.5)
    assert [rung_steps(halves, QUANTUM, rung) // QUANTUM for rung in range(4)] == [1, 2, 3, 4]


def test_the_quota_of_a_rung_is_rounded_down() -> None:
    evolution = EvolutionSpec(rung_factor=3.0)
    assert [quota_of(size, evolution) for size in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_a_trial_reaches_its_rung_when_its_agent_ends_and_a_failed_one_does_not(make_ladder: MakeLog) -> None:
    log = make_ladder()
    good, bad = log.fresh(), log.fresh()
    log.finished(good, 10.0, 20.0)
    log.score(bad, 30.0)
    log.end(bad, failed=True)
    # The estimate is the mean of the last two scores.
    assert log.race.by_number[0].at_rung == [15.0]
    assert log.race.by_number[1].at_rung == []
    log.finished(log.again(good, rung=1), 40.0, 40.0, 40.0, 50.0)
    assert log.race.by_number[0].at_rung == [15.0, 45.0]


def test_the_best_is_the_one_with_the_highest_estimate_that_may_continue(make_ladder: MakeLog) -> None:
    log = make_ladder()
    agents = [log.fresh() for _ in range(4)]
    assert log.race.best() is None
    for agent, score in zip(agents[:3], (10.0, 30.0, 20.0), strict=True):
        log.finished(agent, score, score)
    assert log.race.best().number == 1
    log.end(log.again(agents[1], rung=1), failed=True)
    assert log.race.best().number == 1, "it may continue from its score"
    log.end(log.again(agents[1], rung=1), failed=True)
    assert log.race.best().number == 2


def test_in_a_synchronous_tournament_algorithms_have_their_shares_of_environment_steps(make_ladder: MakeLog) -> None:
    sections = {"synchronous": True, "pool": {"maximum_pods": 2}}
    log = make_ladder(algorithms={"ppo": {}, "a2c": {"ratio": 3.0}}, sections=sections)

    def algorithm() -> str:
        situation = Situation(log.spec, len(log.agents), (), {}, {}, trials=log.race, clock=log.clock)
        # Times are not reproducible.
        later = replace(situation, clock=replace(log.clock, running_seconds=log.seconds + 1e6))
        assert algorithm_by_time(later, log.race) == algorithm_by_time(situation, log.race)
        return algorithm_by_time(situation, log.race)

    assert algorithm() == "a2c", "the largest ratio comes first"
    log.finished(log.fresh("a2c"), 1.0, 1.0)
    assert algorithm() == "ppo", "it has no trial"
    ppo = log.fresh("ppo")
    log.finished(ppo, 1.0)
    # Steps are 2,000 and 1,000: 1,500 above the share of a2c are missing, and ppo is 250 above its own.
    assert algorithm() == "a2c"
    log.finished(log.fresh("a2c"), *[1.0] * 8)
    # 10,000 and 1,000: ppo is 1,750 below its share.
    assert algorithm() == "ppo"
    log.again(ppo, rung=1, steps=4 * QUANTUM)
    # 10,000 and 5,000, of which 4,000 are in training: a2c is 1,250 below its share.
    assert algorithm() == "a2c"
