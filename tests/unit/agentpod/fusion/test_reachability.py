"""Tests which learners are left out when fusion rounds fail again and again, and that such failures have an end."""

from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest

from agentpod.fusion.reachability import (
    LEADER,
    LONGEST_PAUSE_SECONDS,
    MOST_FAILURES,
    LeaderIsolated,
    Pause,
    Reachability,
    describe_pauses,
)
from agentpod.fusion.rounds import Arrival, FusionOptions, FusionRounds, RoundReport

NOW = 1000.0
OPTIONS = FusionOptions(straggler_seconds=30.0, report_seconds=30.0)


def members(*indices: int) -> frozenset[int]:
    return frozenset(indices)


DOUBT = Reachability(MOST_FAILURES, members(0), reason="lost")
PAUSED = Reachability(0, members(0, 1), 1, {2: Pause(1, NOW + 60.0)}, reason="lost")


@pytest.mark.parametrize(
    ("state", "now", "arrived", "admitted"),
    [
        pytest.param(Reachability(2), NOW, [0, 1, 2], {0, 1, 2}, id="without doubt all may take part"),
        pytest.param(DOUBT, NOW, [0, 1, 2], {0, 1}, id="one is tried"),
        pytest.param(Reachability(0, members(0, 1), 2), NOW, [0, 1, 2, 3, 4], {0, 1, 2, 3}, id="two are tried"),
        pytest.param(PAUSED, NOW + 59.0, [0, 1, 2], {0, 1}, id="a paused learner is left out"),
        pytest.param(PAUSED, NOW + 60.0, [0, 1, 2], {0, 1, 2}, id="and tried again later"),
        pytest.param(PAUSED, NOW, [0, 2, 3], {0, 3}, id="the others are tried meanwhile"),
    ],
)
def test_a_round_has_the_proven_learners_and_a_few_on_trial(
    state: Reachability, now: float, arrived: list[int], admitted: set[int]
) -> None:
    assert state.admitted(now, arrived) == admitted


@pytest.mark.parametrize(
    ("state", "failed", "succeeded", "proven", "trials", "paused"),
    [
        pytest.param(Reachability(0), (0, 1, 2), (), None, 1, {}, id="a first failure shows nothing"),
        pytest.param(Reachability(2), (0, 1, 2), (), {0}, 1, {}, id="a third one shows that some are not reachable"),
        pytest.param(
            Reachability(2), (0, 1, 2, 3), (0, 3), {0, 3}, 1, {}, id="who has computed an average can reach the others"
        ),
        pytest.param(DOUBT, (0, 1), (), {0}, 1, {1: 60.0}, id="the only one on trial is the cause"),
        pytest.param(
            Reachability(0, members(0, 1), 2), (0, 1, 2, 3), (), {0, 1}, 1, {}, id="of two on trial either may be it"
        ),
        pytest.param(
            Reachability(0, members(0, 1), 1, {2: Pause(2, NOW)}),
            (0, 1, 2),
            (),
            {0, 1},
            1,
            {2: 240.0},
            id="after each failure it is left out for twice as long",
        ),
        pytest.param(
            Reachability(2, members(0, 1)),
            (0, 1),
            (),
            {0},
            1,
            {},
            id="if proven learners fail, only the leader is left",
        ),
    ],
)
def test_failures_narrow_down_which_learner_is_the_cause(
    state: Reachability,
    failed: tuple[int, ...],
    succeeded: tuple[int, ...],
    proven: set[int] | None,
    trials: int,
    paused: dict[int, float],
) -> None:
    after = state.after_failure(NOW, members(*failed), members(*succeeded), [], "lost")
    assert (after.failures, after.proven, after.trials) == (state.failures + 1, proven, trials)
    assert {index: pause.until - NOW for index, pause in after.paused.items()} == paused


@pytest.mark.parametrize(
    ("state", "committed", "waiting", "expected"),
    [
        pytest.param(Reachability(2), (0, 1), (), Reachability(), id="a committed round ends a row of failures"),
        pytest.param(DOUBT, (0, 1), (), Reachability(), id="and all doubts if none waits"),
        pytest.param(DOUBT, (0, 1), (2, 3), Reachability(0, members(0, 1), 2, reason="lost"), id="else twice as many"),
        pytest.param(PAUSED, (0, 1), (2,), PAUSED, id="a paused learner stays paused"),
        pytest.param(PAUSED, (0, 1, 2), (), Reachability(), id="until a round with it succeeds"),
    ],
)
def test_committed_rounds_prove_their_members(
    state: Reachability, committed: tuple[int, ...], waiting: tuple[int, ...], expected: Reachability
) -> None:
    assert state.after_commit(members(*committed), waiting) == expected


def test_the_pause_has_a_limit() -> None:
    assert Pause(100, NOW).seconds == LONGEST_PAUSE_SECONDS


def test_the_warning_names_the_learner_and_what_to_check() -> None:
    after = DOUBT.after_failure(NOW, members(0, 1), members(), [], "port closed")
    (line,) = describe_pauses(DOUBT, after)
    assert line.startswith("learner 1 is left out of fusion rounds for 60 s")
    for part in ("port closed", "`host`", "NCCL_SOCKET_IFNAME"):
        assert part in line
    assert "\n" not in line
    assert not describe_pauses(after, after)


@dataclass
class Network:
    """Learners that take part in rounds; a round fails if two of its members cannot reach each other."""

    learners: int
    broken: set[frozenset[int]]
    round_seconds: float = 5.0
    now: float = 0.0
    aborted: int = 0
    aborted_in_row: int = 0
    most_in_row: int = 0
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rounds = FusionRounds(self.learners, OPTIONS)
        self.applied = dict.fromkeys(range(self.learners), 0)

    def round(self) -> frozenset[int]:
        """Runs one round; returns its members if it is committed."""
        rounds = self.rounds
        for index, applied in self.applied.items():
            rounds.arrive(Arrival(index, "", applied, 0, 100, self.now))
        rounds.advance(self.now)
        formed = rounds.state.formed
        assert formed
        here = frozenset(index for index, _ in formed.members)
        lost = any(frozenset(pair) in self.broken for pair in combinations(sorted(here), 2))
        self.now += 20.0 if lost else self.round_seconds
        for index in here:
            failure = "a member did not respond" if lost else ""
            rounds.report(RoundReport((index, ""), formed.epoch, formed.round, "same", failure, self.now))
        rounds.advance(self.now)
        self.warnings += rounds.take_warnings()
        self.aborted += lost
        self.aborted_in_row = self.aborted_in_row + 1 if lost else 0
        self.most_in_row = max(self.most_in_row, self.aborted_in_row)
        if lost:
            return frozenset()
        self.applied |= dict.fromkeys(here, formed.round)
        return here


def cut_off(index: int, learners: int) -> set[frozenset[int]]:
    return {frozenset({index, other}) for other in range(learners) if other != index}


@pytest.mark.parametrize("unreachable", [1, 2, 5, 7])
def test_an_unreachable_learner_is_dropped_and_all_others_continue_together(unreachable: int) -> None:
    learners = 8
    network = Network(learners, cut_off(unreachable, learners))
    fused = [network.round() for _ in range(12)]
    assert fused[-1] == frozenset(range(learners)) - {unreachable}
    assert network.most_in_row <= MOST_FAILURES + 2
    assert network.aborted <= MOST_FAILURES + 4
    assert [warning.split(" is ")[0] for warning in network.warnings] == [f"learner {unreachable}"]
    # It joins with the leader's state once it can be reached.
    network.broken.clear()
    network.now += 120.0
    assert network.round() == frozenset(range(learners))
    assert network.rounds.state.reachability == Reachability()


@pytest.mark.parametrize(
    "pair", [pair for pair in combinations(range(6), 2) if LEADER not in pair], ids=lambda pair: f"{pair[0]}-{pair[1]}"
)
def test_of_two_learners_that_cannot_reach_each_other_one_is_dropped(pair: tuple[int, int]) -> None:
    network = Network(6, {frozenset(pair)})
    fused = [network.round() for _ in range(12)]
    assert len(fused[-1]) == 5
    assert network.aborted <= MOST_FAILURES + 4


def test_failures_that_end_by_themselves_drop_no_learner() -> None:
    network = Network(4, cut_off(2, 4))
    for _ in range(MOST_FAILURES - 1):
        assert not network.round()
    network.broken.clear()
    for _ in range(3):
        assert network.round() == {0, 1, 2, 3}
    assert not network.warnings


def test_the_only_follower_is_dropped_and_tried_again_less_and_less_often() -> None:
    network = Network(2, cut_off(1, 2), round_seconds=50.0)
    for _ in range(200):
        network.round()
    # In 10,000 s: 4 at first, then after 60, 120, 240, 480, 960 and 1920 s, and after an hour.
    assert 9_000.0 < network.now < 11_000.0
    assert network.aborted == 4 + 7
    assert network.rounds.state.environment_steps > 0


@pytest.mark.parametrize("learners", [3, 8])
def test_a_leader_that_reaches_no_other_learner_ends_with_one_line_that_says_what_to_check(learners: int) -> None:
    network = Network(learners, cut_off(LEADER, learners))
    for _ in range(MOST_FAILURES + learners - 1):
        assert not network.round()
    with pytest.raises(LeaderIsolated, match="NCCL_SOCKET_IFNAME") as raised:
        network.round()
    assert "a member did not respond" in raised.value.message
    assert "\n" not in raised.value.message


def test_while_learners_are_tried_the_leader_waits_for_those_that_are_not_left_out() -> None:
    state = Reachability(0, members(0, 1), 1, {2: Pause(1, NOW + 60.0)})
    assert state.awaited(NOW, [0, 1, 2, 3]) == {0, 1, 3}
    assert state.awaited(NOW + 60.0, [0, 1, 2, 3]) == {0, 1, 2, 3}


def test_a_learner_that_has_waited_for_long_does_not_shorten_the_wait_for_the_others() -> None:
    rounds = FusionRounds(3, OPTIONS)
    rounds.state = replace(rounds.state, reachability=Reachability(0, members(0, 1), 1, {2: Pause(1, NOW)}))
    rounds.arrive(Arrival(2, "", 0, 0, 100, NOW - 1000.0))
    rounds.arrive(Arrival(0, "", 0, 0, 100, NOW))
    assert rounds.advance(NOW) == NOW + 30.0
    rounds.arrive(Arrival(1, "", 0, 0, 100, NOW + 10.0))
    rounds.advance(NOW + 10.0)
    assert rounds.state.formed
    assert [index for index, _ in rounds.state.formed.members] == [0, 1, 2]


def test_a_lost_process_or_another_average_is_no_sign_of_an_unreachable_learner() -> None:
    rounds = FusionRounds(2, OPTIONS)
    for number in range(2 * MOST_FAILURES):
        rounds.arrive(Arrival(0, "a", 0, 0, 100, NOW))
        rounds.arrive(Arrival(1, f"b{number}", 0, 0, 100, NOW))
        rounds.advance(NOW)
        assert rounds.state.formed
        rounds.leave((1, f"b{number}"))
        rounds.report(RoundReport((0, "a"), rounds.state.epoch, 1, "", "lost", NOW))
        rounds.advance(NOW)
        assert rounds.state.aborted
    assert rounds.state.reachability == Reachability()
