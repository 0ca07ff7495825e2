import math
from collections.abc import Callable
from typing import Any

import pytest

from leaderboard.ranking.board import Board, fold
from leaderboard.ranking.champion_selection import FreshScore, name_champion, shrunken
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, FreshEvaluation
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]


@pytest.fixture
def board(make_candidate: MakeCandidate) -> Board:
    return fold([make_candidate(number, 100.0 - number, 3.0) for number in range(4)], capacity=4).board


def spec_of(make_spec: MakeSpec, top: int = 3, **others: Any) -> TournamentSpec:
    return make_spec(champion={"reevaluate_top": top, "reevaluate_episodes": 40}, **others)


def fresh(candidate: Candidate, score: float, variance: float = 0.0, episodes: int = 40) -> FreshEvaluation:
    evaluation = Evaluation(mean_return=score, variance=variance, episodes=episodes)
    return FreshEvaluation(candidate_id=candidate.candidate_id, evaluation=evaluation)


def test_without_reevaluation_the_first_on_the_board_is_champion(make_spec: MakeSpec, board: Board) -> None:
    answer = name_champion(make_spec(), board, [])
    assert answer.champion == board[0]
    assert not answer.contenders
    assert (answer.score, answer.standard_error) == (100.0, 3.0)
    assert answer.reason == "a0 (100 ± 3) is first on the board"


def test_an_empty_board_has_no_champion(make_spec: MakeSpec) -> None:
    answer = name_champion(spec_of(make_spec), (), [])
    assert not answer.HasField("champion")
    assert not answer.contenders


def test_contenders_are_evaluated_on_the_same_seed_derived_from_the_tournaments(
    make_spec: MakeSpec, board: Board
) -> None:
    contenders = name_champion(spec_of(make_spec, seed=1), board, []).contenders
    assert [contender.candidate.agent_number for contender in contenders] == [0, 1, 2]
    assert {contender.episodes for contender in contenders} == {40}
    (seed,) = {contender.seed for contender in contenders}
    assert 0 < seed < 2**63
    assert name_champion(spec_of(make_spec, seed=2), board, []).contenders[0].seed != seed
    some = name_champion(spec_of(make_spec, seed=1), board, [fresh(board[1], 1.0)])
    assert [contender.candidate.agent_number for contender in some.contenders] == [0, 2]


def test_only_fresh_scores_count(make_spec: MakeSpec, board: Board) -> None:
    evaluations = [fresh(board[0], 50.0), fresh(board[1], 60.0), fresh(board[2], 55.0), fresh(board[3], 999.0)]
    for listed in (evaluations, evaluations[::-1]):
        answer = name_champion(spec_of(make_spec), board, listed)
        assert answer.champion == board[1]
        assert not answer.contenders
        assert answer.reason == "a1 (99 ± 3), evaluated again at 60 ± 0, is best of 3; shrunk: 60"


def test_equal_candidates_keep_the_order_of_the_board(make_spec: MakeSpec, board: Board) -> None:
    equal = [fresh(candidate, 7.0, variance=9.0) for candidate in board[:3]]
    assert name_champion(spec_of(make_spec), board, equal).champion == board[0]


def test_failed_evaluations_are_ignored(make_spec: MakeSpec, board: Board) -> None:
    failed = [FreshEvaluation(candidate_id=candidate.candidate_id) for candidate in board[:3]]
    answer = name_champion(spec_of(make_spec), board, [failed[0], fresh(board[2], 1.0), failed[1]])
    assert (answer.champion, list(answer.contenders)) == (board[2], [])
    unevaluated = name_champion(spec_of(make_spec), board, failed)
    assert unevaluated.champion == board[0]
    assert unevaluated.reason == "a0 (100 ± 3) is first on the board; no fresh evaluation of a contender succeeded"
    broken = [fresh(candidate, math.nan) for candidate in board[:3]]
    assert name_champion(spec_of(make_spec), board, broken).champion == board[0]


def test_scores_of_the_built_in_evaluator_count_only_without_other_scores(make_spec: MakeSpec, board: Board) -> None:
    evaluations = [fresh(board[0], 900.0), fresh(board[1], 60.0), fresh(board[2], 55.0)]
    evaluations[0].evaluation.evaluator_fault = "it hung"
    answer = name_champion(spec_of(make_spec), board, evaluations)
    assert answer.champion == board[1]
    assert "best of 2" in answer.reason
    for one in evaluations:
        one.evaluation.evaluator_fault = "it hung"
    assert name_champion(spec_of(make_spec), board, evaluations).champion == board[0]


def test_scores_are_shrunk_in_proportion_to_their_noise() -> None:
    # Mean 20, variance of the scores 100, noise (64 + 36 + 50) / 3 = 50, so that the true variance is 50.
    scores = [FreshScore(30.0, 8.0), FreshScore(20.0, 6.0), FreshScore(10.0, math.sqrt(50.0))]
    assert shrunken(scores) == pytest.approx([20 + 10 * 50 / 114, 20.0, 20 - 10 * 50 / 100])


def test_scores_that_differ_only_by_noise_are_shrunk_to_their_mean() -> None:
    assert shrunken([FreshScore(11.0, 5.0), FreshScore(9.0, 5.0)]) == [10.0, 10.0]
    assert shrunken([FreshScore(11.0, 0.0), FreshScore(9.0, 0.0)]) == [11.0, 9.0]
    assert shrunken([FreshScore(3.0, 2.0)]) == [3.0]
    assert shrunken([FreshScore(3.0, 0.0), FreshScore(3.0, 0.0)]) == [3.0, 3.0]


def test_a_noisier_score_counts_less(make_spec: MakeSpec, board: Board) -> None:
    # 61 from four episodes of variance 6,400 (error 40), against 60 with none; the third makes them differ truly.
    evaluations = [fresh(board[0], 61.0, 6400.0, episodes=4), fresh(board[1], 60.0), fresh(board[2], -100.0)]
    assert name_champion(spec_of(make_spec), board, evaluations).champion == board[1]
