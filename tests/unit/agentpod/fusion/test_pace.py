"""Tests how long fusion rounds wait for slow learners, and the warning about a learner that is always late."""

import pytest

from agentpod.fusion.pace import RECENT_ROUNDS, TIMES_LATE, Pace
from agentpod.fusion.rounds import Arrival, FusionOptions, FusionRounds, RoundReport

OPTIONS = FusionOptions(straggler_seconds=30.0, report_seconds=5.0)


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ((), 30.0),
        ((8.0, 9.0, 7.0), 30.0),
        ((100.0,), 100.0),
        ((100.0, 120.0, 4000.0), 120.0),
        ((100.0, 200.0), 150.0),
    ],
    ids=["no rounds yet", "short rounds", "long rounds", "one during an evaluation", "an even number"],
)
def test_a_round_waits_as_long_as_the_leader_usually_trains(intervals: tuple[float, ...], seconds: float) -> None:
    assert Pace(intervals=intervals).straggler_seconds(30.0) == seconds


def test_only_recent_rounds_count_and_only_the_first_attempt_of_each() -> None:
    pace = Pace().after_begin(50.0, [])
    assert pace.intervals == ()
    for number in range(1, 20):
        pace = pace.after_commit(100.0 * number)
        pace = pace.after_begin(100.0 * number + number, [])
        # It was aborted.
        pace = pace.after_begin(100.0 * number + 90.0, [])
    assert pace.intervals == tuple(float(number) for number in range(20 - RECENT_ROUNDS, 20))


class Learners:
    """A leader that arrives every 300 s, and a follower."""

    def __init__(self) -> None:
        self.rounds = FusionRounds(2, OPTIONS)
        self.applied = {0: 0, 1: 0}
        self.warnings: list[str] = []
        self.arrive(0.0, 1)
        self.arrive(0.0, 0)
        assert self.finish(0.0) == {0, 1}

    def arrive(self, now: float, index: int) -> float:
        """Returns until when the round waits."""
        self.rounds.arrive(Arrival(index, "", self.applied[index], self.rounds.state.epoch, 100, now))
        return self.rounds.advance(now)

    def finish(self, now: float) -> set[int]:
        """Commits the round; returns its members."""
        self.rounds.advance(now)
        formed = self.rounds.state.formed
        assert formed
        for member in formed.members:
            self.rounds.report(RoundReport(member, formed.epoch, formed.round, "same", "", now))
            self.applied[member[0]] = formed.round
        self.rounds.advance(now)
        self.warnings += self.rounds.take_warnings()
        return {index for index, _ in formed.members}


def test_a_learner_that_is_slower_by_a_third_always_takes_part_and_never_takes_the_leaders_state() -> None:
    learners = Learners()
    for number in range(5):
        now = 400.0 * number
        assert learners.arrive(now + 300.0, 0) == now + 600.0
        learners.arrive(now + 400.0, 1)
        formed = learners.rounds.state.formed
        assert formed
        assert not formed.joiners
        assert learners.finish(now + 400.0) == {0, 1}
    assert not learners.warnings


def test_a_learner_that_is_always_dropped_is_reported_once() -> None:
    learners = Learners()
    for number in range(2 * TIMES_LATE):
        now = 900.0 * number
        learners.arrive(now + 300.0, 0)
        assert learners.finish(now + 600.0) == {0}
        # The follower needs more than twice as long as the leader; it waits for the next round.
        learners.arrive(now + 700.0, 1)
        learners.arrive(now + 900.0, 0)
        assert learners.finish(now + 900.0) == {0, 1}
        assert len(learners.warnings) == (number + 1 >= TIMES_LATE)
    assert learners.warnings[0].startswith(
        "learner 1 was dropped from 3 fusion rounds, because it arrives more than 300 s"
    )
