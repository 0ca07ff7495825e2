"""Selects the champion from fresh evaluations of the best candidates, and its reported score from others. Pure.

The first candidate of a board has the highest of many noisy scores, which overestimates its true score (the winner's
curse; Smith and Winkler, "The Optimizer's Curse", Management Science 52, 2006). Two disjoint sets of new episodes
remove that bias:

1.  All contenders play set A, and only these scores choose the champion. Contenders are the first candidates of the
    board and the newest submission of each of their lineages.
2.  The champion alone plays set B. Its mean return there is the reported score. Nothing was selected on these episodes,
    so the mean is unbiased. The mean over set A, by which it was selected, is the highest of several and therefore not.

For the choice, each score of set A is shrunk towards the mean of the scores, in proportion to its noise (James and
Stein; Efron and Morris, "Stein's Estimation Rule and Its Competitors", 1973, with the variance of the true scores
estimated by moments):
    shrunken_i = m + t / (t + e_i^2) (score_i - m),   t = max(0, variance of the scores - mean of e_i^2)
with m the mean of the scores and e_i their standard errors. With equal errors the order does not change; otherwise a
noisier score counts less. Equal results are ordered by the fresh score, then by rank on the board.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from leaderboard.ranking.board import Board, named
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import (
    OPINION_REFUSE,
    Candidate,
    Contender,
    FreshEvaluation,
    NameChampionResponse,
)
from podrace.seeding import purpose_seed
from podrace.tournament.v1.tournament_pb2 import ChampionSelection, TournamentSpec

Newest = Mapping[str, Candidate]
"""The newest submission of each lineage, by the name of the lineage."""


@dataclass(frozen=True)
class FreshScore:
    """A mean return over fresh episodes."""

    score: float
    """Mean return over the fresh episodes."""
    standard_error: float
    """Standard error of that mean."""
    episodes: int = 0
    """Number of episodes."""


@dataclass(frozen=True)
class Choice:
    """The candidate that a set of evaluations chose."""

    candidate: Candidate
    selected_by: FreshScore
    """The score by which it was chosen."""
    reason: str
    """Why, in one line."""
    by_fallback_evaluator: bool = False
    """Whether the built-in evaluator scored it in place of the tournament's evaluator plugin."""


def name_champion(
    spec: TournamentSpec, board: Board, newest: Newest, evaluations: Sequence[FreshEvaluation]
) -> NameChampionResponse:
    """Selects the champion from the evaluations so far, and lists what must be evaluated next.

    Args:
        spec: Resolved specification.
        board: Candidates by rank.
        newest: The newest submission of each lineage.
        evaluations: Evaluations of contenders; others are ignored. An evaluation without a result has failed.
    """
    if not board:
        return NameChampionResponse()
    if not spec.champion.reevaluate_top:
        first = board[0]
        return NameChampionResponse(
            champion=first,
            score=first.score,
            standard_error=first.standard_error,
            reason=_first_of(board).reason,
        )
    contenders = contenders_of(spec, board, newest)
    chosen_on = results_of(evaluations, choice_seed(spec))
    missing = [one for one in contenders if one.candidate_id not in chosen_on] if len(contenders) > 1 else []
    choice = _chosen(board, contenders, chosen_on)
    selection = ChampionSelection(
        selection_score=choice.selected_by.score,
        selection_standard_error=choice.selected_by.standard_error,
        selection_episodes=choice.selected_by.episodes,
    )
    if missing:
        return _answer(choice, selection, _contenders(spec, missing, choice_seed(spec)), choice.selected_by)
    return _reported(spec, choice, selection, results_of(evaluations, report_seed(spec)))


def choice_seed(spec: TournamentSpec) -> int:
    """Returns the seed of the episodes that choose the champion (set A)."""
    return purpose_seed(spec.seed, "champion", 0)


def report_seed(spec: TournamentSpec) -> int:
    """Returns the seed of the episodes of the reported score (set B)."""
    return purpose_seed(spec.seed, "champion-report", 0)


def lineage_of(candidate: Candidate) -> str:
    """Returns the name of the lineage of a candidate: its agent."""
    return candidate.agent_id


def newest_of_lineages(submissions: Sequence[Candidate]) -> dict[str, Candidate]:
    """Returns the newest submission of each lineage, of submissions by arrival."""
    return {lineage_of(candidate): candidate for candidate in submissions}


def contenders_of(spec: TournamentSpec, board: Board, newest: Newest) -> list[Candidate]:
    """Returns the candidates that may become the champion, without duplicates.

    These are the first of the board by rank, then the newest submission of each of their lineages. A candidate that an
    updater plugin refused is none. If the updater plugin ranks the board by numbers of its own, mean returns must not
    overrule it, so the first of the board is the only contender.
    """
    top = board[: spec.champion.reevaluate_top]
    if top[0].HasField("rank_score"):
        return [top[0]]
    latest = (newest.get(lineage) for lineage in dict.fromkeys(map(lineage_of, top)))
    known = {candidate.candidate_id for candidate in top}
    return [
        *top,
        *(one for one in latest if one and one.candidate_id not in known and one.opinion != OPINION_REFUSE),
    ]


def results_of(evaluations: Sequence[FreshEvaluation], seed: int) -> dict[str, Evaluation]:
    """Returns the evaluations with a seed, by candidate; an evaluation that failed is empty."""
    return {one.candidate_id: one.evaluation for one in evaluations if (one.seed or one.evaluation.seed) == seed}


def usable(result: Evaluation) -> bool:
    """Whether an evaluation has a valid result."""
    return result.episodes > 0 and math.isfinite(result.mean_return) and 0 <= result.variance < math.inf


def fresh_of(evaluation: Evaluation) -> FreshScore:
    """Returns the fresh score of an evaluation."""
    error = math.sqrt(evaluation.variance / evaluation.episodes)
    return FreshScore(evaluation.mean_return, error, evaluation.episodes)


def shrunken(scores: Sequence[FreshScore]) -> list[float]:
    """Returns the scores, each shrunk towards their mean; a single score is unchanged."""
    if len(scores) < 2:
        return [one.score for one in scores]
    mean = fmean(one.score for one in scores)
    noise = fmean(one.standard_error**2 for one in scores)
    true_variance = max(0.0, variance(one.score for one in scores) - noise)
    return [mean + _believed(true_variance, one) * (one.score - mean) for one in scores]


def _believed(true_variance: float, one: FreshScore) -> float:
    total = true_variance + one.standard_error**2
    return true_variance / total if total else 1.0


def _first_of(board: Board) -> Choice:
    first = board[0]
    score = FreshScore(first.score, first.standard_error, first.episodes)
    return Choice(first, score, f"{named(first)} is first on the board", bool(first.evaluator_fault))


def _chosen(board: Board, contenders: Sequence[Candidate], results: Mapping[str, Evaluation]) -> Choice:
    """Returns the best of the contenders that were evaluated; the first of the board if there is none."""
    comparable = _comparable(results)
    judged = [candidate for candidate in contenders if candidate.candidate_id in comparable]
    if not judged:
        first = _first_of(board)
        why = "; no fresh evaluation of a contender succeeded" * (bool(results) and len(contenders) > 1)
        return Choice(first.candidate, first.selected_by, first.reason + why, first.by_fallback_evaluator)
    scores = [fresh_of(comparable[candidate.candidate_id]) for candidate in judged]
    estimates = shrunken(scores)
    # Sorting is stable: equal candidates keep the order of the contenders.
    best = min(range(len(judged)), key=lambda i: (-estimates[i], -scores[i].score))
    fresh = f"{scores[best].score:.4g} ± {scores[best].standard_error:.2g}"
    reason = (
        f"{named(judged[best])}, evaluated again at {fresh}, is best of {len(judged)}; shrunk: {estimates[best]:.4g}"
    )
    fault = comparable[judged[best].candidate_id].evaluator_fault
    return Choice(judged[best], scores[best], reason, bool(fault))


def _comparable(results: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """Returns the results that count.

    Results of the built-in evaluator, where the tournament has another one, count only if there are no others.
    """
    valid = {key: result for key, result in results.items() if usable(result)}
    as_wanted = {key: result for key, result in valid.items() if not result.evaluator_fault}
    return as_wanted or valid


def _reported(
    spec: TournamentSpec, choice: Choice, selection: ChampionSelection, results: Mapping[str, Evaluation]
) -> NameChampionResponse:
    """Adds the reported score to a final choice, or asks for its evaluation."""
    champion = choice.candidate
    if champion.candidate_id not in results:
        wanted = _contenders(spec, [champion], report_seed(spec))
        return _answer(choice, selection, wanted, choice.selected_by)
    result = results[champion.candidate_id]
    problem = ""
    if not usable(result):
        problem = "the evaluation on new episodes failed"
    elif result.evaluator_fault and not choice.by_fallback_evaluator:
        problem = "the evaluator plugin failed on the new episodes"
    if problem:
        return _answer(choice, selection, [], choice.selected_by, f"{problem}, so the selection score is reported")
    reported = fresh_of(result)
    selection.reported_episodes = reported.episodes
    shown = f"{reported.score:.4g} ± {reported.standard_error:.2g} on {reported.episodes} episodes that chose nothing"
    return _answer(choice, selection, [], reported, f"reported: {shown}")


def _contenders(spec: TournamentSpec, candidates: Sequence[Candidate], seed: int) -> list[Contender]:
    episodes = spec.champion.reevaluate_episodes
    return [Contender(candidate=candidate, episodes=episodes, seed=seed) for candidate in candidates]


def _answer(
    choice: Choice, selection: ChampionSelection, contenders: Sequence[Contender], score: FreshScore, more: str = ""
) -> NameChampionResponse:
    reason = f"{choice.reason}; {more}" if more else choice.reason
    selection.reason = reason
    return NameChampionResponse(
        contenders=contenders,
        champion=choice.candidate,
        score=score.score,
        standard_error=score.standard_error,
        reason=reason,
        selection=selection,
    )
