import math
from collections.abc import Callable, Mapping
from random import Random
from statistics import fmean, variance
from typing import Any

import pytest

from leaderboard.ranking.board import Board, fold
from leaderboard.ranking.champion_selection import choice_seed, ensemble_seed, name_champion, report_seed
from leaderboard.ranking.contenders import newest_by_trial
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import (
    OPINION_REFUSE,
    Candidate,
    FreshEvaluation,
    NameChampionResponse,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]
ALONE: dict[int, Candidate] = {}
"""No lineage has a newer submission than those on the board."""


@pytest.fixture
def board(make_candidate: MakeCandidate) -> Board:
    return fold([make_candidate(number, 100.0 - number, 3.0) for number in range(4)], capacity=4).board


def spec_of(make_spec: MakeSpec, top: int = 3, **others: Any) -> TournamentSpec:
    return make_spec(champion={"reevaluate_top": top, "reevaluate_episodes": 40}, **others)


def fresh(
    candidate: Candidate, score: float, variance: float = 0.0, episodes: int = 40, *, seed: int
) -> FreshEvaluation:
    evaluation = Evaluation(mean_return=score, variance=variance, episodes=episodes)
    return FreshEvaluation(candidate_id=candidate.candidate_id, evaluation=evaluation, seed=seed)


def chosen_on(spec: TournamentSpec, board: Board, *scores: float, variance: float = 0.0) -> list[FreshEvaluation]:
    """Evaluates the first candidates of a board on the episodes that choose the champion."""
    return [
        fresh(candidate, score, variance, seed=choice_seed(spec))
        for candidate, score in zip(board, scores, strict=False)
    ]


def final(
    spec: TournamentSpec, board: Board, evaluations: list[FreshEvaluation], newest: Mapping[int, Candidate] = ALONE
) -> NameChampionResponse:
    """Returns the champion, whose reported score is that of the report 7 ± 0."""
    answer = name_champion(spec, board, newest, evaluations)
    (contender,) = answer.contenders
    reported = fresh(contender.candidate, 7.0, seed=contender.seed)
    return name_champion(spec, board, newest, [*evaluations, reported])


# --- contenders --------------------------------------------------------------------------------------------------


def test_without_reevaluation_the_first_on_the_board_is_champion(make_spec: MakeSpec, board: Board) -> None:
    answer = name_champion(spec_of(make_spec, top=0), board, ALONE, [])
    assert answer.champion == board[0]
    assert not answer.contenders
    assert not answer.HasField("selection")
    assert (answer.score, answer.standard_error) == (100.0, 3.0)
    assert answer.reason == "a0 (100 ± 3) is first on the board"


def test_four_candidates_may_become_champion_by_default(make_spec: MakeSpec, make_candidate: MakeCandidate) -> None:
    board = fold([make_candidate(number, 100.0 - number, 3.0) for number in range(6)], capacity=6).board
    contenders = name_champion(make_spec(), board, ALONE, []).contenders
    assert [(one.candidate.agent_number, one.episodes) for one in contenders] == [(0, 64), (1, 64), (2, 64), (3, 64)]


def test_an_empty_board_has_no_champion(make_spec: MakeSpec) -> None:
    answer = name_champion(spec_of(make_spec), (), ALONE, [])
    assert not answer.HasField("champion")
    assert not answer.contenders


def test_contenders_are_evaluated_on_the_same_seed_derived_from_the_tournaments(
    make_spec: MakeSpec, board: Board
) -> None:
    contenders = name_champion(spec_of(make_spec, seed=1), board, ALONE, []).contenders
    assert [contender.candidate.agent_number for contender in contenders] == [0, 1, 2]
    assert {contender.episodes for contender in contenders} == {40}
    assert {contender.seed for contender in contenders} == {choice_seed(spec_of(make_spec, seed=1))}
    other = name_champion(spec_of(make_spec, seed=2), board, ALONE, []).contenders[0]
    assert other.seed != contenders[0].seed
    some = name_champion(
        spec_of(make_spec, seed=1), board, ALONE, [fresh(board[1], 1.0, seed=choice_seed(spec_of(make_spec, seed=1)))]
    )
    assert [contender.candidate.agent_number for contender in some.contenders] == [0, 2]


def test_the_newest_submission_of_each_contenders_trial_may_become_champion(
    make_spec: MakeSpec, make_candidate: MakeCandidate, board: Board
) -> None:
    # a0 has a newer submission that did not enter the board, a1's newest is the one on the board, a3 is no contender.
    newer = [make_candidate(number, 50.0, 3.0, candidate_id=f"newer-{number}") for number in (0, 3)]
    newest = newest_by_trial([*board, *newer])
    spec = spec_of(make_spec, top=2)
    contenders = name_champion(spec, board, newest, []).contenders
    assert [one.candidate.candidate_id for one in contenders] == [
        board[0].candidate_id,
        board[1].candidate_id,
        "newer-0",
    ]
    evaluations = [*chosen_on(spec, board, 60.0, 61.0), fresh(newer[0], 62.0, seed=choice_seed(spec))]
    assert final(spec, board, evaluations, newest).champion.candidate_id == "newer-0"


def test_agents_that_continue_each_other_have_one_newest_submission(
    make_spec: MakeSpec, make_candidate: MakeCandidate, board: Board
) -> None:
    continued = make_candidate(9, 50.0, 3.0, trial=board[0].agent_number)
    newest = newest_by_trial([*board, continued])
    contenders = name_champion(spec_of(make_spec, top=2), board, newest, []).contenders
    assert [one.candidate.agent_number for one in contenders] == [0, 1, 9]


def test_a_candidate_that_the_updater_plugin_refused_is_no_contender(
    make_spec: MakeSpec, make_candidate: MakeCandidate, board: Board
) -> None:
    refused = make_candidate(0, 500.0, 3.0, candidate_id="refused", opinion=OPINION_REFUSE)
    contenders = name_champion(spec_of(make_spec), board, newest_by_trial([*board, refused]), []).contenders
    assert "refused" not in [one.candidate.candidate_id for one in contenders]


def test_mean_returns_do_not_overrule_the_rank_of_an_updater_plugin(
    make_spec: MakeSpec, make_candidate: MakeCandidate
) -> None:
    ranked = [make_candidate(number, 10.0 * number, 3.0, rank_score=9.0 - number) for number in range(3)]
    board = fold(ranked, capacity=4).board
    spec = spec_of(make_spec)
    (contender,) = name_champion(spec, board, newest_by_trial(board), []).contenders
    assert (contender.candidate, contender.seed) == (board[0], report_seed(spec))


# --- the choice --------------------------------------------------------------------------------------------------


def test_only_fresh_scores_choose(make_spec: MakeSpec, board: Board) -> None:
    spec = spec_of(make_spec)
    evaluations = chosen_on(spec, board, 50.0, 60.0, 55.0, 999.0)
    for listed in (evaluations, evaluations[::-1]):
        answer = name_champion(spec, board, ALONE, listed)
        assert answer.champion == board[1]
        assert (
            answer.reason == "a1 (99 ± 3), evaluated again at 60 ± 0, is best of 3: its lead over a2 (98 ± 3) is 5 ± 0"
        )


def test_evaluations_on_other_seeds_are_ignored(make_spec: MakeSpec, board: Board) -> None:
    spec = spec_of(make_spec)
    others = [fresh(candidate, 999.0, seed=report_seed(spec)) for candidate in board[:2]]
    answer = name_champion(spec, board, ALONE, [*others, fresh(board[2], 1.0, seed=12345)])
    assert [one.candidate.agent_number for one in answer.contenders] == [0, 1, 2]
    assert answer.champion == board[0]


def test_the_seed_of_an_evaluation_counts_if_its_contenders_seed_is_not_stated(
    make_spec: MakeSpec, board: Board
) -> None:
    spec = spec_of(make_spec)
    evaluations = chosen_on(spec, board, 50.0, 60.0, 55.0)
    for one in evaluations:
        one.evaluation.seed, one.seed = one.seed, 0
    assert name_champion(spec, board, ALONE, evaluations).champion == board[1]


def test_equal_candidates_keep_the_order_of_the_board(make_spec: MakeSpec, board: Board) -> None:
    spec = spec_of(make_spec)
    assert name_champion(spec, board, ALONE, chosen_on(spec, board, 7.0, 7.0, 7.0, variance=9.0)).champion == board[0]


def test_failed_evaluations_do_not_choose(make_spec: MakeSpec, board: Board) -> None:
    spec = spec_of(make_spec)
    failed = [FreshEvaluation(candidate_id=candidate.candidate_id, seed=choice_seed(spec)) for candidate in board[:3]]
    answer = name_champion(spec, board, ALONE, [failed[0], fresh(board[2], 1.0, seed=choice_seed(spec)), failed[1]])
    assert answer.champion == board[2]
    unevaluated = final(spec, board, failed)
    assert unevaluated.champion == board[0]
    assert unevaluated.reason == (
        "a0 (100 ± 3) is first on the board; no fresh evaluation of a contender succeeded;"
        " reported: 7 ± 0 on 40 episodes that were not used for selection"
    )
    assert unevaluated.selection.selection_score == 100.0
    broken = chosen_on(spec, board, math.nan, math.nan, math.nan)
    assert name_champion(spec, board, ALONE, broken).champion == board[0]


def test_scores_of_the_built_in_evaluator_count_only_without_other_scores(make_spec: MakeSpec, board: Board) -> None:
    spec = spec_of(make_spec)
    evaluations = chosen_on(spec, board, 900.0, 60.0, 55.0)
    evaluations[0].evaluation.evaluator_fault = "it hung"
    answer = name_champion(spec, board, ALONE, evaluations)
    assert answer.champion == board[1]
    assert "best of 2" in answer.reason
    for one in evaluations:
        one.evaluation.evaluator_fault = "it hung"
    assert name_champion(spec, board, ALONE, evaluations).champion == board[0]


# --- ensembles ---------------------------------------------------------------------------------------------------


def with_ensemble(make_spec: MakeSpec, size: int = 2) -> TournamentSpec:
    return make_spec(champion={"reevaluate_top": 3, "reevaluate_episodes": 40, "ensemble": size})


def competing(
    spec: TournamentSpec, board: Board, alone: float | None, together: float | None
) -> tuple[list[FreshEvaluation], list[Candidate]]:
    """Evaluates a0 to a2 (a1 is best, a0 second), then a1 alone and with a0; None: the evaluation failed."""
    evaluations = chosen_on(spec, board, 58.0, 60.0, 30.0, variance=160.0)
    single, ensemble = name_champion(spec, board, ALONE, evaluations).contenders
    for contender, score in ((single, alone), (ensemble, together)):
        made = fresh(contender.candidate, score or 0.0, variance=40.0, seed=contender.seed)
        made.member_candidate_ids.extend(member.candidate_id for member in contender.members)
        if score is None:
            made.ClearField("evaluation")
        evaluations.append(made)
    return evaluations, [ensemble.candidate, *ensemble.members]


def test_the_best_contender_and_the_ensemble_play_episodes_that_chose_neither(
    make_spec: MakeSpec, board: Board
) -> None:
    spec = with_ensemble(make_spec)
    evaluations = chosen_on(spec, board, 58.0, 60.0, 30.0, variance=160.0)
    single, ensemble = name_champion(spec, board, ALONE, evaluations).contenders
    assert (single.candidate, list(single.members)) == (board[1], [])
    assert (ensemble.candidate, list(ensemble.members)) == (board[1], [board[0]])
    assert {single.seed, ensemble.seed} == {ensemble_seed(spec)}
    assert len({choice_seed(spec), ensemble_seed(spec), report_seed(spec)}) == 3
    assert (single.episodes, ensemble.episodes) == (40, 40)


def test_the_better_of_ensemble_and_best_contender_is_champion_and_plays_the_report(
    make_spec: MakeSpec, board: Board
) -> None:
    spec = with_ensemble(make_spec)
    evaluations, members = competing(spec, board, alone=55.0, together=62.0)
    answer = name_champion(spec, board, ALONE, evaluations)
    (contender,) = answer.contenders
    assert ([contender.candidate, *contender.members], contender.seed) == (members, report_seed(spec))
    alone = fresh(board[1], 99.0, seed=report_seed(spec))
    assert name_champion(spec, board, ALONE, [*evaluations, alone]).contenders, "that is not the ensemble"
    reported = fresh(board[1], 61.0, seed=report_seed(spec))
    reported.member_candidate_ids.append(board[0].candidate_id)
    named = name_champion(spec, board, ALONE, [*evaluations, reported])
    assert (named.champion, named.score, list(named.contenders)) == (board[1], 61.0, [])
    assert named.selection.selection_score == 62.0
    (member,) = named.selection.members
    assert (member.agent_id, member.manifest_digest) == (board[0].agent_id, board[0].candidate_id)
    assert "the ensemble a1 + a0 62 ± 1, a lead of 7 ± 1.4: the ensemble is champion" in named.reason


@pytest.mark.parametrize("together", [55.0, 50.0])
def test_an_ensemble_that_is_not_better_is_not_champion(make_spec: MakeSpec, board: Board, together: float) -> None:
    spec = with_ensemble(make_spec)
    evaluations, _ = competing(spec, board, alone=55.0, together=together)
    named = final(spec, board, evaluations)
    assert (named.champion, list(named.selection.members)) == (board[1], [])
    assert (named.score, named.selection.selection_score) == (7.0, 55.0)


@pytest.mark.parametrize(("alone", "together", "failed"), [(55.0, None, "of the ensemble"), (None, 99.0, "alone")])
def test_if_a_members_files_are_missing_the_best_contender_is_champion(
    make_spec: MakeSpec, board: Board, alone: float | None, together: float | None, failed: str
) -> None:
    spec = with_ensemble(make_spec)
    evaluations, _ = competing(spec, board, alone, together)
    named = final(spec, board, evaluations)
    assert (named.champion, list(named.selection.members)) == (board[1], [])
    assert named.selection.selection_score == 60.0
    assert f"not compared with the ensemble a1 + a0: the evaluation {failed} failed" in named.reason


def test_without_a_second_lineage_there_is_no_ensemble(make_spec: MakeSpec, board: Board) -> None:
    spec = with_ensemble(make_spec)
    (contender,) = name_champion(spec, board, ALONE, chosen_on(spec, board, 10.0, 60.0, 20.0)).contenders
    assert (list(contender.members), contender.seed) == ([], report_seed(spec))


# --- the reported score ------------------------------------------------------------------------------------------


def test_the_champion_is_evaluated_once_more_on_a_seed_that_was_not_used_for_selection(
    make_spec: MakeSpec, board: Board
) -> None:
    spec = spec_of(make_spec)
    evaluations = chosen_on(spec, board, 50.0, 60.0, 55.0, variance=40.0)
    answer = name_champion(spec, board, ALONE, evaluations)
    (contender,) = answer.contenders
    assert (contender.candidate, contender.episodes, contender.seed) == (board[1], 40, report_seed(spec))
    assert report_seed(spec) != choice_seed(spec)
    evaluations.append(fresh(board[1], 52.0, variance=160.0, seed=contender.seed))
    named = name_champion(spec, board, ALONE, evaluations)
    assert (named.champion, list(named.contenders)) == (board[1], [])
    assert (named.score, named.standard_error) == (52.0, 2.0), "the plain mean of the second set and its error"
    selection = named.selection
    assert (selection.selection_score, selection.selection_standard_error) == (60.0, 1.0), "not shrunk"
    assert (selection.selection_episodes, selection.reported_episodes) == (40, 40)
    assert named.reason == selection.reason
    assert named.reason.endswith("; reported: 52 ± 2 on 40 episodes that were not used for selection")


def test_a_single_contender_is_evaluated_only_for_its_reported_score(make_spec: MakeSpec, board: Board) -> None:
    spec = spec_of(make_spec, top=1)
    (contender,) = name_champion(spec, board, ALONE, []).contenders
    assert contender.seed == report_seed(spec)
    named = final(spec, board, [])
    assert (named.score, named.selection.selection_score) == (7.0, 100.0)
    assert named.reason.startswith("a0 (100 ± 3) is first on the board; reported: 7 ± 0")


def test_without_a_reported_score_the_selection_score_is_reported_with_the_reason(
    make_spec: MakeSpec, board: Board
) -> None:
    spec = spec_of(make_spec)
    evaluations = chosen_on(spec, board, 50.0, 60.0, 55.0, variance=40.0)
    failed = FreshEvaluation(candidate_id=board[1].candidate_id, seed=report_seed(spec))
    answer = name_champion(spec, board, ALONE, [*evaluations, failed])
    assert not answer.contenders
    assert (answer.champion, answer.score, answer.standard_error) == (board[1], 60.0, 1.0)
    assert answer.selection.reported_episodes == 0
    assert answer.reason.endswith("; the evaluation on new episodes failed, so the selection score is reported")


def test_a_reported_score_is_not_taken_from_another_evaluator_than_the_choice(
    make_spec: MakeSpec, board: Board
) -> None:
    spec = spec_of(make_spec)
    evaluations = chosen_on(spec, board, 50.0, 60.0, 55.0)
    reported = fresh(board[1], 900.0, seed=report_seed(spec))
    reported.evaluation.evaluator_fault = "it hung"
    answer = name_champion(spec, board, ALONE, [*evaluations, reported])
    assert (answer.score, answer.selection.reported_episodes) == (60.0, 0)
    assert "the evaluator plugin failed on the new episodes" in answer.reason
    for one in evaluations:
        one.evaluation.evaluator_fault = "it hung"
    assert name_champion(spec, board, ALONE, [*evaluations, reported]).score == 900.0


# --- honesty -----------------------------------------------------------------------------------------------------


def test_the_reported_score_is_unbiased_and_the_selection_score_is_too_high(make_spec: MakeSpec, board: Board) -> None:
    # Four policies of true returns 10, 9.5, 9 and 8.5. Each episode adds independent noise of variance 40, so a mean
    # over 40 episodes has the standard error 1, which is as large as the differences.
    spec, truths, replications = spec_of(make_spec, top=4), (10.0, 9.5, 9.0, 8.5), 2000
    random = Random(7)
    selection_z, reported_z = [], []
    for _ in range(replications):
        scores = [random.gauss(truth, 1.0) for truth in truths]
        evaluations = chosen_on(spec, board, *scores, variance=40.0)
        (contender,) = name_champion(spec, board, ALONE, evaluations).contenders
        truth = truths[contender.candidate.agent_number]
        evaluations.append(fresh(contender.candidate, random.gauss(truth, 1.0), variance=40.0, seed=contender.seed))
        named = name_champion(spec, board, ALONE, evaluations)
        selection_z.append((named.selection.selection_score - truth) / named.selection.selection_standard_error)
        reported_z.append((named.score - truth) / named.standard_error)
    # The error of a mean of 2,000 values of z is 0.022: four of these are allowed.
    assert abs(fmean(reported_z)) < 4 / math.sqrt(replications)
    assert 0.9 < variance(reported_z) < 1.1
    assert fmean(selection_z) > 0.5
