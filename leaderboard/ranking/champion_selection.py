"""Selects the champion from fresh evaluations of the best candidates. Pure.

The first candidate of a board has the highest of many noisy scores, which overestimates its true score (the winner's
curse; Smith and Winkler, "The Optimizer's Curse", Management Science 52, 2006). The top of the board is therefore
evaluated again, all candidates on the same seeds, which were not used for selection, and only these fresh scores count.
The highest of a few scores is still biased, but less. Each score is therefore shrunk towards their mean, in proportion
to its noise (James and Stein; Efron and Morris, "Stein's Estimation Rule and Its Competitors", 1973, with the variance
of the true scores estimated by moments):
    shrunken_i = m + t / (t + e_i^2) (score_i - m),   t = max(0, variance of the scores - mean of e_i^2)
with m the mean of the scores and e_i their standard errors. With equal errors the order does not change; otherwise a
noisier score counts less. Equal results are ordered by the fresh score, then by rank on the board.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from leaderboard.ranking.board import Board, named
from leaderboard.seeding import purpose_seed
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate, Contender, FreshEvaluation, NameChampionResponse
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class FreshScore:
    """A contender's fresh score."""

    score: float
    """Mean return over the fresh episodes."""
    standard_error: float
    """Standard error of that mean."""


def name_champion(spec: TournamentSpec, board: Board, evaluations: Sequence[FreshEvaluation]) -> NameChampionResponse:
    """Selects the champion from the evaluations so far, and lists the candidates whose evaluation is missing.

    Args:
        spec: Resolved specification.
        board: Candidates by rank.
        evaluations: Evaluations of contenders; others are ignored. An evaluation without a result has failed.
    """
    contenders = board[: spec.champion.reevaluate_top]
    given = {one.candidate_id: one for one in evaluations}
    answer = NameChampionResponse(
        contenders=[
            Contender(
                candidate=candidate,
                episodes=spec.champion.reevaluate_episodes,
                seed=purpose_seed(spec.seed, "champion", 0),
            )
            for candidate in contenders
            if candidate.candidate_id not in given
        ]
    )
    results = {key: fresh_of(one.evaluation) for key, one in _comparable(given).items()}
    judged = [candidate for candidate in contenders if candidate.candidate_id in results]
    if judged:
        _name_judged(answer, judged, results)
    elif board:
        answer.champion.CopyFrom(board[0])
        answer.score, answer.standard_error = board[0].score, board[0].standard_error
        answer.reason = f"{named(board[0])} is first on the board" + (
            "; no fresh evaluation of a contender succeeded" if given and contenders else ""
        )
    return answer


def usable(one: FreshEvaluation) -> bool:
    """Whether an evaluation has a valid result."""
    result = one.evaluation
    return result.episodes > 0 and math.isfinite(result.mean_return) and 0 <= result.variance < math.inf


def _comparable(given: Mapping[str, FreshEvaluation]) -> dict[str, FreshEvaluation]:
    """Returns the results that count.

    Results of the built-in evaluator, where the tournament has another one, count only if there are no others.
    """
    results = {key: one for key, one in given.items() if usable(one)}
    as_wanted = {key: one for key, one in results.items() if not one.evaluation.evaluator_fault}
    return as_wanted or results


def fresh_of(evaluation: Evaluation) -> FreshScore:
    """Returns the fresh score of an evaluation."""
    return FreshScore(evaluation.mean_return, math.sqrt(evaluation.variance / evaluation.episodes))


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


def _name_judged(answer: NameChampionResponse, judged: Sequence[Candidate], results: Mapping[str, FreshScore]) -> None:
    scores = [results[candidate.candidate_id] for candidate in judged]
    estimates = shrunken(scores)
    # Sorting is stable: equal candidates keep the order of the board.
    order = sorted(range(len(judged)), key=lambda i: (-estimates[i], -scores[i].score))
    first = order[0]
    answer.champion.CopyFrom(judged[first])
    answer.score, answer.standard_error = estimates[first], scores[first].standard_error
    fresh = f"{scores[first].score:.4g} ± {scores[first].standard_error:.2g}"
    answer.reason = (
        f"{named(judged[first])}, evaluated again at {fresh}, is best of {len(judged)}; shrunk: {estimates[first]:.4g}"
    )
