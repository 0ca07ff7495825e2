"""Owns who is champion, judged on fresh evaluations. Pure.

The first of a board is the highest of many noisy scores, and so is too good to be true (the winner's curse; Smith and
Winkler, "The Optimizer's Curse", Management Science 52, 2006). So the top of the board is evaluated again, all on the
same seeds, which nobody was selected on, and only these fresh scores count. The highest of a few is still biased, by
less; each is therefore shrunk towards their mean by what of it is noise (James and Stein; Efron and Morris, "Stein's
Estimation Rule and Its Competitors", 1973, with the variance of the true scores estimated by moments):
    shrunken_i = m + t / (t + e_i^2) (score_i - m),   t = max(0, variance of the scores - mean of e_i^2)
with m the mean of the scores and e_i their standard errors. With equal errors the order stays; else who has more noise
is believed less. Who is equal then is ordered by the fresh score, then by rank on the board.
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
    """Of that mean."""


def name_champion(spec: TournamentSpec, board: Board, evaluations: Sequence[FreshEvaluation]) -> NameChampionResponse:
    """Says who is champion by what is known, and who is to be evaluated before that is final.

    Args:
        spec: Resolved.
        board: Candidates by rank.
        evaluations: Of contenders; those of others are left aside. One without a result is a contender's that failed.
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
        answer.reason = f"{named(board[0])} is first of the board" + (
            "; no fresh evaluation of a contender succeeded" if given and contenders else ""
        )
    return answer


def usable(one: FreshEvaluation) -> bool:
    """Whether an evaluation has a result that can be compared."""
    result = one.evaluation
    return result.episodes > 0 and math.isfinite(result.mean_return) and 0 <= result.variance < math.inf


def _comparable(given: Mapping[str, FreshEvaluation]) -> dict[str, FreshEvaluation]:
    """The results that count: those that a pod's own evaluator scored in the tournament's place only if all are."""
    results = {key: one for key, one in given.items() if usable(one)}
    as_wanted = {key: one for key, one in results.items() if not one.evaluation.evaluator_fault}
    return as_wanted or results


def fresh_of(evaluation: Evaluation) -> FreshScore:
    """The fresh score of an evaluation."""
    return FreshScore(evaluation.mean_return, math.sqrt(evaluation.variance / evaluation.episodes))


def shrunken(scores: Sequence[FreshScore]) -> list[float]:
    """The scores, each shrunk towards their mean; a single one stays."""
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
    # Sorting is stable: who is equal keeps the order of the board.
    order = sorted(range(len(judged)), key=lambda i: (-estimates[i], -scores[i].score))
    first = order[0]
    answer.champion.CopyFrom(judged[first])
    answer.score, answer.standard_error = estimates[first], scores[first].standard_error
    fresh = f"{scores[first].score:.4g} ± {scores[first].standard_error:.2g}"
    answer.reason = (
        f"{named(judged[first])}, evaluated again at {fresh}, is best of {len(judged)}; shrunk: {estimates[first]:.4g}"
    )
