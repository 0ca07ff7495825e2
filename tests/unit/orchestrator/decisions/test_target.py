from random import Random
from typing import Any

import pytest

from orchestrator.decisions.target import (
    CheckState,
    TargetCheck,
    affordable,
    confirmed,
    describe,
    next_candidate,
    pending,
    rounds_allow,
    work_to_interrupt,
)
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def check(
    number: int, score: float | None = None, *, state: CheckState = CheckState.DONE, **others: Any
) -> TargetCheck:
    return TargetCheck(number, f"race-a{number}", f"c{number}", state, score, **others)


def board(*scores: float) -> list[Candidate]:
    return [Candidate(candidate_id=f"c{number}", score=score) for number, score in enumerate(scores)]


def test_a_target_is_confirmed_exactly_when_a_check_reaches_it() -> None:
    assert confirmed([check(0, 474.9), check(1), check(2, state=CheckState.PENDING)], 475.0) is None
    assert confirmed([check(0, 470.0), check(1, 475.0), check(2, 500.0)], 475.0) == check(1, 475.0)
    assert confirmed([check(0, -249.0)], -250.0)


def test_a_lower_target_is_confirmed_by_an_earlier_check() -> None:
    assert confirmed([check(0, 470.0)], 460.0) == check(0, 470.0)


def test_candidates_that_reach_the_target_are_checked_once_in_the_order_of_the_board() -> None:
    candidates, checks = board(490.0, 480.0, 475.0, 474.0), []
    for expected in ("c0", "c1", "c2"):
        found = next_candidate(candidates, checks, 475.0)
        assert found is not None
        assert found.candidate_id == expected
        checks.append(check(int(expected[1:]), 400.0))
    assert next_candidate(candidates, checks, 475.0) is None


def test_a_check_that_does_not_count_may_be_repeated_and_one_that_failed_may_not() -> None:
    candidates = board(490.0)
    assert next_candidate(candidates, [check(0, state=CheckState.VOID)], 475.0) == candidates[0]
    assert next_candidate(candidates, [check(0)], 475.0) is None
    assert next_candidate(candidates, [check(0, state=CheckState.PENDING)], 475.0) is None


def test_one_check_is_under_way_at_a_time() -> None:
    waiting = check(1, state=CheckState.PENDING)
    assert pending([check(0, 1.0), waiting]) == waiting
    assert pending([check(0, 1.0)]) is None


@pytest.mark.parametrize(
    ("share", "pod_seconds", "allowed"), [(0.1, 79.9, False), (0.1, 80.0, True), (0.0, 1e9, False)]
)
def test_checks_take_at_most_their_share_of_the_pods_time(share: float, pod_seconds: float, allowed: bool) -> None:
    # 2 s and 3 s are spent, and the next check is expected to take 3 s as well.
    checks = [check(0, 1.0, seconds=2.0), check(1, 1.0, seconds=3.0)]
    assert affordable(checks, share, pod_seconds) == allowed


def test_the_first_check_is_always_affordable() -> None:
    assert affordable([], 0.0, 0.0)


def test_a_synchronous_tournament_makes_at_most_one_check_for_each_round() -> None:
    assert [rounds_allow([check(0, 1.0)], rounds) for rounds in (0, 1, 2)] == [False, False, True]


def test_a_check_that_was_withdrawn_is_made_again_in_the_same_round() -> None:
    assert rounds_allow([check(0, 1.0, state=CheckState.WITHDRAWN)], 1)
    assert not rounds_allow([check(0, 1.0, state=CheckState.VOID)], 1)


def test_the_best_agent_trains_on() -> None:
    assert work_to_interrupt([]) == ""
    assert work_to_interrupt([("a0", 480.0)]) == "a0"
    assert work_to_interrupt([("a0", 480.0), ("a1", -3.0), ("a2", 12.0)]) == "a1"
    assert work_to_interrupt([("a0", 480.0), ("a1", -3.0), ("a2", None)]) == "a2"


def test_a_result_has_score_error_episodes_and_target() -> None:
    done = check(3, 460.0, standard_error=5.2, episodes=32)
    assert describe(done, 475.0) == "a3 scores 460 ± 5.2 on 32 new episodes, the target is 475"
    assert describe(check(3), 475.0) == "a3 could not be evaluated on new episodes, the target is 475"


def test_checks_rarely_confirm_a_policy_below_the_target_that_the_board_nearly_always_does() -> None:
    # 16 agents whose true return is 2 errors below the target submit 10 scores each.
    random, wrong_by_board, wrong_by_check = Random(1), 0, 0
    for _ in range(500):
        scores = [max(random.gauss(-2.0, 1.0) for _ in range(10)) for _ in range(16)]
        leader = max(scores)
        wrong_by_board += leader >= 0.0
        wrong_by_check += leader >= 0.0 and random.gauss(-2.0, 1.0) >= 0.0
    assert wrong_by_board > 450
    assert wrong_by_check < 25
