import itertools
import math
import random
from collections.abc import Callable

import pytest

from leaderboard.ranking.board import Board, answer_of, canonical, fold, judge, judge_arrival, rank_key, rank_of
from podrace.leaderboard.v1.leaderboard_pb2 import VERDICT_ACCEPTED, VERDICT_EVICTED, VERDICT_REFUSED, Candidate

Make = Callable[..., Candidate]


def scores(board: Board) -> list[float]:
    return [candidate.score for candidate in board]


def test_a_board_with_room_accepts_every_candidate_and_ranks_by_mean(make_candidate: Make) -> None:
    judgement = fold([make_candidate(number, score) for number, score in enumerate([2.0, 9.0, 5.0])], capacity=3)
    assert scores(judgement.board) == [9.0, 5.0, 2.0]
    assert {standing.verdict for standing in judgement.standings.values()} == {VERDICT_ACCEPTED}


def test_ties_go_to_the_lower_error_then_fewer_steps_then_the_lower_agent_then_the_earlier_arrival(
    make_candidate: Make,
) -> None:
    ordered = [
        make_candidate(9, 5.0, 0.1, environment_steps=90, sequence=9),
        make_candidate(8, 5.0, 0.2, environment_steps=10, sequence=8),
        make_candidate(1, 5.0, 0.2, environment_steps=20, sequence=7),
        make_candidate(2, 5.0, 0.2, environment_steps=20, sequence=1),
        make_candidate(2, 5.0, 0.2, environment_steps=20, sequence=2),
    ]
    for permutation in itertools.permutations(ordered):
        assert sorted(permutation, key=rank_key) == ordered


def test_a_better_candidate_of_an_agent_replaces_its_earlier_one(make_candidate: Make) -> None:
    earlier, later = make_candidate(0, 5.0, 3.0), make_candidate(0, 5.1, 3.0, environment_steps=2000)
    judgement = fold([earlier, later, make_candidate(1, 1.0)], capacity=3)
    assert scores(judgement.board) == [5.1, 1.0]
    assert judgement.standings[earlier.candidate_id].verdict == VERDICT_EVICTED
    assert "a0 (5.1 ± 3) took its place" in judgement.standings[earlier.candidate_id].reason


def test_a_worse_candidate_of_an_agent_is_refused_even_where_there_is_room(make_candidate: Make) -> None:
    board = (make_candidate(0, 5.0),)
    worse = make_candidate(0, 4.9)
    judgement = judge(board, worse, capacity=3)
    assert judgement.board == board
    assert judgement.standings[worse.candidate_id].verdict == VERDICT_REFUSED


def test_an_equal_score_of_an_agent_with_more_steps_is_refused(make_candidate: Make) -> None:
    board = (make_candidate(0, 500.0, environment_steps=1000, sequence=1),)
    assert judge(board, make_candidate(0, 500.0, environment_steps=2000, sequence=2), capacity=3).board == board


def test_a_full_board_evicts_its_last_candidate_for_a_significantly_better_one(make_candidate: Make) -> None:
    first, last = make_candidate(0, 9.0, 1.0), make_candidate(1, 2.0, 1.0)
    entering = make_candidate(2, 5.0, 1.0)
    judgement = judge((first, last), entering, capacity=2)
    assert judgement.board == (first, entering)
    assert judgement.standings[last.candidate_id].verdict == VERDICT_EVICTED
    assert judgement.standings[entering.candidate_id].reason == "took the place of a1 (2 ± 1)"


@pytest.mark.parametrize(
    ("difference", "enters"), [(4.999, False), (5.0, False), (5.001, True)], ids=["below", "equal", "above"]
)
def test_the_last_candidate_stays_within_one_standard_error_of_the_difference(
    make_candidate: Make, difference: float, enters: bool
) -> None:
    first, last = make_candidate(0, 100.0), make_candidate(1, 10.0, 3.0)
    entering = make_candidate(2, 10.0 + difference, 4.0)
    judgement = judge((first, last), entering, capacity=2)
    assert (entering in judgement.board) is enters
    if not enters:
        assert "within one standard error of the difference (5)" in judgement.standings[entering.candidate_id].reason


def test_a_candidate_with_fewer_steps_enters_within_the_error(make_candidate: Make) -> None:
    first, last = make_candidate(0, 100.0), make_candidate(1, 10.0, 3.0, environment_steps=1000)
    entering = make_candidate(2, 10.5, 4.0, environment_steps=999)
    assert judge((first, last), entering, capacity=2).board == (first, entering)


def test_a_full_board_refuses_a_candidate_that_ranks_behind_the_last(make_candidate: Make) -> None:
    board = (make_candidate(0, 9.0), make_candidate(1, 2.0, 1.0))
    for entering in (make_candidate(2, 1.9), make_candidate(2, 2.0, 1.1), make_candidate(2, 2.0, 1.0)):
        assert judge(board, entering, capacity=2).board == board


def test_a_candidate_that_ranks_first_enters_even_within_the_error(make_candidate: Make) -> None:
    incumbent, best = make_candidate(0, 470.0, 8.0), make_candidate(1, 476.0, 7.0, environment_steps=5000)
    assert judge((incumbent,), best, capacity=1).board == (best,)


def test_candidates_scored_by_the_built_in_evaluator_rank_after_all_others(make_candidate: Make) -> None:
    stand_in = make_candidate(0, 99.0, evaluator_fault="the evaluator python:mine:evaluate crashed")
    proper = make_candidate(1, 1.0, 5.0, environment_steps=stand_in.environment_steps + 1)
    both = judge((stand_in,), proper, capacity=2)
    assert [candidate.agent_number for candidate in both.board] == [1, 0]
    alone = judge((stand_in,), proper, capacity=1)
    assert alone.board == (proper,), "scores of two kinds are not compared"
    refused = judge((proper,), stand_in, capacity=1).standings[stand_in.candidate_id]
    assert refused.verdict == VERDICT_REFUSED
    assert refused.reason.endswith("the tournament's evaluator scored: the evaluator python:mine:evaluate crashed")


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_any_sequence_keeps_the_highest_mean_one_place_an_agent_and_the_capacity(
    make_candidate: Make, capacity: int
) -> None:
    draw = random.Random(capacity)
    submissions = [
        make_candidate(
            draw.randrange(8), draw.gauss(0, 3), draw.random(), environment_steps=draw.randrange(9), sequence=n
        )
        for n in range(300)
    ]
    board: Board = ()
    highest = -math.inf
    for submission in submissions:
        board = judge(board, submission, capacity).board
        highest = max(highest, submission.score)
        assert board[0].score == highest
        assert len(board) <= capacity
        assert len({candidate.agent_id for candidate in board}) == len(board)
        assert list(board) == sorted(board, key=rank_key)


def test_standings_include_every_judged_candidate(make_candidate: Make) -> None:
    draw = random.Random(0)
    submissions = [make_candidate(draw.randrange(8), draw.gauss(0, 3), 1.0, sequence=n) for n in range(200)]
    judgement = fold(submissions, capacity=4)
    on_board = {candidate.candidate_id for candidate in judgement.board}
    assert judgement.standings.keys() == {candidate.candidate_id for candidate in submissions}
    for candidate_id, standing in judgement.standings.items():
        assert (standing.verdict == VERDICT_ACCEPTED) is (candidate_id in on_board)


def test_synchronous_judging_does_not_depend_on_the_order_of_arrival_of_agents(make_candidate: Make) -> None:
    by_agent = [[(number, 10.0 * attempt + number, 8.0) for attempt in range(3)] for number in range(4)]
    boards = []
    for order in itertools.permutations(range(4)):
        arrived: list[Candidate] = []
        for agent in order:
            for number, score, error in by_agent[agent]:
                candidate = make_candidate(number, score, error, sequence=len(arrived) + 1)
                judgement = judge_arrival(arrived, candidate, 2, synchronous=True)
                arrived.append(candidate)
        boards.append([(candidate.agent_number, candidate.score) for candidate in judgement.board])
    assert all(board == boards[0] for board in boards)


def test_arrival_order_may_matter_when_asynchronous(make_candidate: Make) -> None:
    first, middle, close = make_candidate(0, 100.0), make_candidate(1, 10.0, 3.0), make_candidate(2, 11.0, 3.0)
    assert fold([first, middle, close], 2).board != fold([first, close, middle], 2).board
    assert canonical([close, middle, first]) == [first, middle, close]


def test_the_answer_has_rank_verdict_reason_and_the_highest_score(make_candidate: Make) -> None:
    board = (make_candidate(0, 9.0), make_candidate(1, 2.0))
    entering = make_candidate(2, 5.0)
    answer = answer_of(judge(board, entering, capacity=3), entering)
    assert (answer.candidate.rank, answer.candidate.verdict, answer.best_score) == (2, VERDICT_ACCEPTED, 9.0)
    assert answer.candidate.reason == "the board has room"
    refused = answer_of(judge(board, make_candidate(3, 1.0), capacity=2), make_candidate(3, 1.0))
    assert (refused.candidate.rank, refused.candidate.verdict) == (0, VERDICT_REFUSED)


def test_a_rank_counts_from_one_and_is_zero_off_the_board(make_candidate: Make) -> None:
    board = (make_candidate(0, 9.0), make_candidate(1, 2.0))
    assert [rank_of(board, candidate.candidate_id) for candidate in board] == [1, 2]
    assert rank_of(board, "another") == 0
