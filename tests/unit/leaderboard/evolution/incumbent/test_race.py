"""The state of a race: leads, takeovers, rungs and stops."""

from collections.abc import Callable

import pytest
from trial_log import QUANTUM, Log

MakeLog = Callable[..., Log]


def test_the_first_trial_is_the_incumbent_and_the_founder(log: Log) -> None:
    founder = log.fresh()
    assert log.race.incumbent is log.race.by_number[founder.number]
    assert log.race.founders == {"ppo": 0}


def test_a_challenger_takes_over_after_the_lead_has_held_for_two_scores(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.score(founder, 10.0)
    log.score(challenger, 50.0)
    assert log.race.incumbent is log.race.by_number[0]
    log.score(challenger, 50.0)
    assert log.race.incumbent is log.race.by_number[1]


def test_a_lead_within_the_error_does_not_count_and_breaks_a_series(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.score(founder, 10.0)
    # Estimates 49.5 and 30.25 against 9.5; an error of the difference is sqrt(2).
    for score in (50.0, 10.5):
        log.score(challenger, score)
    assert log.race.incumbent is log.race.by_number[1]
    again = Log(log.spec)
    founder, challenger = again.fresh(), again.fresh()
    again.score(founder, 10.0)
    for score in (11.0, 50.0):
        again.score(challenger, score)
    assert again.race.incumbent is again.race.by_number[0], "10.5 is within the error, 30.5 is only the first lead"


def test_the_lead_is_against_the_newest_score_of_the_incumbent(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.score(founder, 10.0)
    log.score(challenger, 50.0)
    log.score(founder, 90.0)
    log.score(founder, 90.0)
    log.score(challenger, 50.0)
    assert log.race.incumbent is log.race.by_number[0]


def test_the_old_incumbent_is_a_challenger_at_the_rung_of_its_own_training(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    # Rungs end at 2, 6, 18 quanta: seven quanta have reached rung 1.
    for _ in range(7):
        log.score(founder, 10.0)
    for _ in range(2):
        log.score(challenger, 50.0)
    old = log.race.by_number[0]
    assert (old.rung, old.at_rung) == (1, [10.0, 10.0])


def test_the_old_incumbent_keeps_what_it_had_on_the_rungs_that_it_climbed(log: Log) -> None:
    founder = log.finished(log.fresh(), 2.0, 2.0)
    longer, challenger = log.again(founder), log.fresh()
    for _ in range(5):
        log.score(longer, 10.0)
    for _ in range(2):
        log.score(challenger, 50.0)
    old = log.race.by_number[0]
    assert (old.rung, old.at_rung) == (1, [2.0, 10.0])


def test_a_fork_that_is_behind_by_more_than_the_errors_is_stopped(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 10.0)
    fork = log.fork(founder)
    log.score(fork, 0.0)
    assert log.race.stops == {}, "one quantum is too short to judge a fork"
    log.score(fork, 5.0)
    reason = log.race.stops[fork.agent_id]
    # Estimates 2.5 and 9.5; the error of the difference is sqrt(2).
    assert "behind the incumbent" in reason
    assert "by 7" in reason
    log.end(fork)
    assert log.race.stops == {}
    assert log.race.by_number[fork.number].ended.startswith("stopped: ")


def test_an_agent_at_the_end_of_its_assignment_is_not_stopped_but_waits_on_its_rung(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 10.0)
    fork = log.finished(log.fork(founder, steps=2 * QUANTUM), 0.0, 0.0)
    trial = log.race.by_number[fork.number]
    assert (trial.at_rung, trial.ended) == ([0.0], "")
    log.score(log.again(fork, rung=1, steps=4 * QUANTUM), 0.0)
    assert list(log.race.stops) == [log.agents[-1].agent_id]


@pytest.mark.parametrize(("replay_steps", "stopped"), [(0, False), (999, False), (1000, True)])
def test_a_fork_that_must_fill_its_replay_memory_is_not_stopped_on_its_first_rung(
    make_log: MakeLog, replay_steps: int, stopped: bool
) -> None:
    log = make_log(algorithms={"sac": {"hyperparameters": {"warmup_steps": 1000}}})
    founder = log.fresh("sac")
    log.score(founder, 100.0, replay_steps=replay_steps)
    fork = log.fork(founder)
    for _ in range(2):
        log.score(fork, 0.0)
    assert bool(log.race.stops) is stopped
    log.race.by_number[fork.number].at_rung = [0.0]
    log.score(fork, 0.0)
    assert log.race.stops


def test_a_fork_within_the_errors_continues(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 10.0)
    fork = log.fork(founder)
    for score in (8.0, 8.0):
        log.score(fork, score)
    assert log.race.stops == {}


def test_nothing_is_stopped_if_the_setting_is_zero(make_log: MakeLog) -> None:
    log = make_log(stop_errors=0.0)
    founder = log.fresh()
    log.score(founder, 10.0)
    fork = log.fork(founder)
    for score in (-50.0, -50.0):
        log.score(fork, score)
    assert log.race.stops == {}


def test_a_fresh_challenger_is_stopped_below_the_median_of_the_rung_before_its_own(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 100.0)
    for score in (10.0, 20.0, 30.0, 40.0):
        log.finished(log.fresh(), score, score)
    climbing = log.again(log.agents[1], rung=1)
    log.score(climbing, 24.0)
    # Estimates at rung 0: 10, 20, 30, 40, so the median is 25; the newest estimate is (10 + 24) / 2.
    assert "the median of the fresh trials on rung 0" in log.race.stops[climbing.agent_id]
    better = log.again(log.agents[3], rung=1)
    log.score(better, 24.0)
    assert better.agent_id not in log.race.stops


def test_forks_do_not_raise_the_median_that_fresh_challengers_are_stopped_by(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 100.0)
    for score in (10.0, 20.0, 30.0, 40.0):
        log.finished(log.fresh(), score, score)
    for _ in range(6):
        log.finished(log.fork(founder), 100.0, 100.0)
    climbing = log.again(log.agents[4], rung=1)
    log.score(climbing, 44.0)
    assert log.race.stops == {}


def test_fewer_than_four_peers_stop_no_trial(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 100.0)
    for score in (10.0, 20.0, 30.0):
        log.finished(log.fresh(), score, score)
    climbing = log.again(log.agents[1], rung=1)
    log.score(climbing, -50.0)
    assert log.race.stops == {}


def test_on_the_first_rung_no_fresh_challenger_is_stopped(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.score(founder, 100.0)
    for _ in range(3):
        log.score(challenger, -100.0)
    assert log.race.stops == {}


def test_a_founder_within_its_share_is_never_stopped(make_log: MakeLog) -> None:
    log = make_log(founder_share=1.0)
    founder, challenger = log.fresh(), log.fresh()
    log.score(founder, 1.0)
    for _ in range(2):
        log.score(challenger, 50.0)
    log.end(founder)
    for number in range(4):
        log.finished(log.fresh(), 20.0 + number, 20.0)
    log.seconds = 500.0
    again = log.again(founder, rung=1)
    log.score(again, 1.0)
    assert log.race.stops == {}


def test_the_last_trial_of_an_algorithm_is_never_stopped(make_log: MakeLog) -> None:
    log = make_log(algorithms={"ppo": {}, "a2c": {}}, founder_share=0.0)
    log.score(log.fresh(), 100.0)
    for number in range(4):
        log.finished(log.fresh(), 20.0 + number, 20.0)
    alone = log.fresh("a2c", rung=1)
    log.score(alone, -50.0)
    assert log.race.stops == {}


def test_a_trial_reaches_a_rung_when_its_assignment_ends(log: Log) -> None:
    log.score(log.fresh(), 100.0)
    challenger = log.finished(log.fresh(), 10.0, 20.0)
    trial = log.race.by_number[challenger.number]
    assert trial.at_rung == [15.0]
    log.finished(log.again(challenger, rung=1), 30.0, 30.0, 30.0, 40.0)
    assert trial.at_rung == [15.0, 35.0]
    assert trial.environment_steps == 6 * 1000


def test_a_stopped_trial_reaches_no_rung_and_cannot_return(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 100.0)
    fork = log.finished(log.fork(founder), 0.0, 0.0)
    trial = log.race.by_number[fork.number]
    assert trial.at_rung == []
    assert trial.ended
    assert not log.race.ladders.interrupted


def test_if_the_incumbent_fails_twice_the_best_other_trial_leads(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 100.0)
    for score in (10.0, 30.0, 20.0):
        log.finished(log.fresh(), score, score)
    log.end(founder, failed=True)
    assert log.race.incumbent is log.race.by_number[0]
    log.end(log.again(founder), failed=True)
    assert log.race.incumbent is log.race.by_number[2]


def test_a_founder_that_was_never_scored_is_replaced(log: Log) -> None:
    log.end(log.fresh(), failed=True)
    assert log.race.incumbent is None
    second = log.fresh()
    assert log.race.founders == {"ppo": second.number}
    assert log.race.incumbent is log.race.by_number[second.number]
