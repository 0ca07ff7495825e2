"""Whether the incumbent still improves."""

from collections.abc import Callable

import pytest
from trial_log import Log

from leaderboard.evolution import trials
from leaderboard.evolution.incumbent.improvement import improvement_of

MakeLog = Callable[..., Log]


def test_nothing_is_said_before_the_first_score(log: Log) -> None:
    assert improvement_of(log.race) is None
    log.fresh()
    assert improvement_of(log.race) is None


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_an_incumbent_with_few_scores_improves_only_if_it_is_a_founder_with_a_share(
    make_log: MakeLog, share: float
) -> None:
    log = make_log(founder_share=share)
    founder = log.fresh()
    for score in (0.0, 100.0, 200.0, 300.0, 400.0, 500.0):
        log.score(founder, score)
    found = improvement_of(log.race)
    assert found is not None
    assert (found.agent_id, found.improving, found.scores) == (founder.agent_id, share > 0, 6)
    assert "few scores" in found.reason
    challenger = log.fresh()
    for score in (700.0, 800.0):
        log.score(challenger, score)
    found = improvement_of(log.race)
    assert found is not None
    assert (found.agent_id, found.improving) == (challenger.agent_id, False)
    assert "too few scores" in found.reason


def test_until_its_share_is_used_up_a_founder_may_be_below_its_own_best(log: Log) -> None:
    founder = log.fresh()
    log.score(founder, 1000.0)
    found = []
    for _ in range(60):
        # Each takes 10 of 1,000 s.
        log.score(founder, 10.0)
        log.seconds += 10.0
        log.end(log.fresh(), failed=True)
        found.append(improvement_of(log.race))
    improving = [one is not None and one.improving for one in found]
    assert improving == [True] * 48 + [False] * 12, "it has trained for 490 s after the 48th"
    assert found[20] is not None
    assert "below its own best by 989.5" in found[20].reason


@pytest.mark.parametrize(("last", "improving"), [(10.0, False), (11.5, False), (12.5, True), (-50.0, False)])
def test_it_improves_if_it_rose_by_more_than_two_errors_over_four_scores(
    log: Log, last: float, *, improving: bool
) -> None:
    founder = log.fresh()
    for score in (-1000.0, 10.0, 10.0, 10.0, 10.0, last, last):
        log.score(founder, score)
    found = improvement_of(log.race)
    assert found is not None
    assert found.improving is improving, "the error of the difference of two estimates is 1"
    assert ("not more" in found.reason) is not improving


def test_over_a_long_life_the_last_quarter_counts(log: Log) -> None:
    founder = log.fresh()
    for number in range(40):
        log.score(founder, 0.5 * number)
    found = improvement_of(log.race)
    assert found is not None
    assert found.improving, "five over ten scores; two over four would be within the error"
    assert "last 10 scores" in found.reason


def test_dropping_old_scores_changes_nothing_that_is_said(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Log(log.spec)
    founders = log.fresh(), other.fresh()
    for number in range(300):
        score = 3.0 * (number % 7) + 0.1 * number
        log.score(founders[0], score)
        with monkeypatch.context() as patched:
            patched.setattr(trials, "NEWEST_SCORES", 1000)
            other.score(founders[1], score)
        assert improvement_of(log.race) == improvement_of(other.race)
    kept, everything = (one.race.by_number[0].scores for one in (log, other))
    assert len(everything) == 300
    assert len(kept) == 76, "a quarter of them, and the newest"


def test_the_count_of_scores_only_rises_when_another_trial_takes_over(log: Log) -> None:
    founder, challenger = log.fresh(), log.fresh()
    log.score(founder, 10.0)
    counts = []
    for _ in range(8):
        log.score(challenger, 50.0)
        found = improvement_of(log.race)
        assert found is not None
        counts.append(found.scores)
    assert found.agent_id == challenger.agent_id
    assert counts == sorted(counts)
    # The first two made it the incumbent, while the founder led.
    assert counts[-1] == 1 + 6
