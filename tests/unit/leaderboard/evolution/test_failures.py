"""A trial whose agent fails continues from its newest score, unless the agent before failed too."""

from collections.abc import Callable

import pytest
from trial_log import QUANTUM, Log, kind_of

from leaderboard.evolution.strategy import Child, Continue
from orchestrator.decisions.dispatch import is_last_failure
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

MakeLog = Callable[..., Log]


@pytest.fixture(params=["incumbent", "asha"])
def log(make_log: MakeLog, request: pytest.FixtureRequest) -> Log:
    """A log of each strategy with rungs, without the chance decisions."""
    settings = {"incumbent": {"riser_probability": 0.0}, "asha": {"initial_agents": 1}}[request.param]
    return make_log(strategy=request.param, **settings)


def continued(answer: object) -> tuple[int, int | None, int]:
    """Number of the agent that an answer continues, the rung it climbs to, and the quanta of the assignment."""
    assert isinstance(answer, Continue), answer
    return answer.parent.agent_number, answer.rung, answer.environment_steps // QUANTUM


def led(log: Log) -> Agent:
    """Hands out a trial that trains and leads."""
    leader = log.fresh()
    log.score(leader, 1000.0)
    return leader


def test_a_trial_ends_after_two_failures_in_a_row_even_if_it_was_scored_between_them(log: Log) -> None:
    last = log.finished(log.fresh(), 10.0, 20.0)
    trial = log.race.by_number[0]
    for failed in (True, False, True, True):
        assert not trial.ended
        last = log.again(last, rung=1)
        log.score(last, 30.0)
        log.end(last, failed=failed)
    assert trial.ended == "failed"


def test_a_failure_that_is_recorded_after_the_end_counts_in_the_same_row(log: Log) -> None:
    last = log.finished(log.fresh(), 10.0, 20.0)
    for ended in ("", "failed"):
        last = log.again(last, rung=1)
        log.score(last, 30.0)
        log.end(last)
        log.end(last, failed=True)
        assert log.race.by_number[0].ended == ended


def test_a_trial_that_fails_after_each_score_does_not_fail_the_tournament(log: Log) -> None:
    failing, in_row, failures = 0, 0, 0
    for _ in range(12):
        answer = log.next()
        if isinstance(answer, Continue):
            agent = log.again(log.agents[answer.parent.agent_number], answer.rung)
        else:
            agent = log.fork(log.agents[answer.parent.agent_number]) if isinstance(answer, Child) else log.fresh()
        fails = agent.trial == failing
        log.score(agent, 1000.0 if fails else 10.0)
        log.end(agent, failed=fails)
        in_row, failures = (in_row + 1, failures + 1) if fails else (0, failures)
        # The orchestrator counts the agents of all trials.
        assert not is_last_failure(in_row, len(log.spec.algorithms))
    assert failures == 2


def test_an_agent_that_ends_without_a_score_counts_as_failed(log: Log) -> None:
    first = log.finished(log.fresh(), 10.0, 20.0)
    for ended in ("", "ended without a score"):
        log.end(log.again(first, rung=1))
        assert log.race.by_number[0].ended == ended


def test_a_failure_that_is_recorded_twice_counts_once(log: Log) -> None:
    first = log.finished(log.fresh(), 10.0, 20.0)
    again = log.again(first, rung=1)
    for failed in (True, False, True):
        log.end(again, failed=failed)
    assert not log.race.by_number[0].ended


def test_a_trial_without_any_score_ends_at_its_first_failure(log: Log) -> None:
    log.end(log.fresh(), failed=True)
    assert log.race.by_number[0].ended == "failed"


def test_a_trial_that_failed_on_the_way_continues_to_the_same_rung_from_its_newest_score(log: Log) -> None:
    led(log)
    # Rungs end at 2 and 6 quanta; the agent fails after 3.
    first = log.finished(log.fresh(), 10.0, 20.0)
    climbing = log.again(first, rung=1)
    log.score(climbing, 30.0)
    assert kind_of(log.next()) == "fresh", "it trains"
    log.end(climbing, failed=True)
    answer = log.next()
    assert continued(answer) == (climbing.number, 1, 3)
    assert answer.reason.startswith(f"a{climbing.number} failed before rung 1: continues from ")
    trial = log.race.by_number[first.number]
    assert len(trial.at_rung) == 1, "a failed agent reaches no rung"
    log.finished(log.again(climbing, rung=1), *[40.0] * 3)
    assert trial.at_rung[1:] == [40.0]
    assert trial.environment_steps == 6 * QUANTUM


def test_an_agent_that_is_cut_short_reaches_no_rung_and_its_trial_trains_what_is_missing(log: Log) -> None:
    led(log)
    # Rungs end at 2 and 6 quanta; a step budget ends the agent after 3.
    first = log.finished(log.fresh(), 10.0, 20.0)
    short = log.finished(log.again(first, rung=1), 90.0)
    assert len(log.race.ladders.fresh_at(1)) == 0, "others are not compared with a shorter training"
    answer = log.next()
    assert continued(answer) == (short.number, 1, 3)
    assert answer.reason.startswith(f"a{short.number} ended before rung 1: continues from ")
    log.finished(log.again(short, rung=1), *[40.0] * 3)
    trial = log.race.by_number[first.number]
    assert trial.at_rung == [15.0, 40.0]
    assert trial.environment_steps == 6 * QUANTUM
    assert len(log.race.ladders.fresh_at(1)) == 1


def test_an_agent_that_climbs_no_rung_has_not_failed_before_one(log: Log) -> None:
    led(log)
    # A generator plugin proposes agents without rungs.
    plain = log.fresh(rung=None)
    log.finished(plain, 10.0)
    assert kind_of(log.next()) == "fresh"


def test_the_leading_lineage_continues_after_a_failed_agent(make_log: MakeLog) -> None:
    log = make_log(riser_probability=0.0)
    founder = log.finished(log.fresh(), 100.0, 100.0)
    challenger = log.fresh()
    log.score(challenger, 10.0)
    log.end(log.again(founder), failed=True)
    answer = log.next()
    assert continued(answer) == (founder.number, None, 2)
    assert "continues the incumbent" in answer.reason
    log.again(founder)
    log.seconds = 500.0
    forks = [answer for answer in map(log.next, range(20)) if kind_of(answer) == "fork"]
    assert {fork.parent.agent_number for fork in forks} == {founder.number}
