"""Computes the deflated Sharpe ratio: the probability that a selected strategy has skill and is not just lucky. Pure.

Bailey and Lopez de Prado 2014, "The deflated Sharpe ratio: correcting for selection bias, backtest overfitting and
non-normality", Journal of Portfolio Management 40(5). All Sharpe ratios here are per return (daily), not per year,
unless the name has `yearly`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, variance

TRADING_DAYS_A_YEAR = 252
EULER_MASCHERONI = 0.5772156649015329
LEAST_RETURNS = 3
"""Number of returns below which nothing is computed."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Track:
    """Statistics of a series of returns."""

    sharpe_ratio: float
    returns: int
    """Number of returns, T."""
    skewness: float
    """Third standardized moment; 0 for normal returns."""
    kurtosis: float
    """Fourth standardized moment, not its excess; 3 for normal returns."""


@dataclass(frozen=True)
class Deflation:
    """The deflated Sharpe ratio of a champion, and what it was computed from."""

    track: Track
    candidates: int
    """Number of candidates that were tried, M."""
    independent_trials: float
    """Effective number of independent trials, N."""
    correlation: float
    """Average correlation between candidates, from which N was computed."""
    sharpe_variance: float
    """Variance of the candidates' Sharpe ratios."""
    expected_maximum: float
    """Expected highest Sharpe ratio among N candidates without skill."""
    probabilistic_sharpe_ratio: float
    """Probability that the true Sharpe ratio is above 0, without a correction for the selection."""
    deflated_sharpe_ratio: float
    """Probability that the true Sharpe ratio is above 0, after the selection among N trials."""


def track_of(account_value: Sequence[float]) -> Track | None:
    """Returns the statistics of the returns of an account; None for a constant account or too few values.

    Args:
        account_value: Positive values at each day's close.
    """
    returns = [after / before - 1 for before, after in pairwise(account_value)]
    if len(returns) < LEAST_RETURNS:
        return None
    mean = fmean(returns)
    centered = [value - mean for value in returns]
    second = fmean(value**2 for value in centered)
    if second <= 0:
        return None
    third, fourth = (fmean(value**power for value in centered) for power in (3, 4))
    # The deviation as in the Sharpe ratio of reports: unbiased variance.
    sharpe_ratio = mean / math.sqrt(second * len(returns) / (len(returns) - 1))
    return Track(sharpe_ratio, len(returns), third / second**1.5, fourth / second**2)


def probabilistic_sharpe_ratio(track: Track, benchmark: float = 0.0) -> float:
    """Returns the probability that the true Sharpe ratio exceeds a benchmark (equation 2 of the paper).

    PSR(b) = Z((SR - b) sqrt(T - 1) / sqrt(1 - skewness SR + (kurtosis - 1) / 4 SR^2)), Z the normal distribution.
    """
    ratio = track.sharpe_ratio
    spread = 1 - track.skewness * ratio + (track.kurtosis - 1) / 4 * ratio**2
    # Never 0 or less for the moments of a sample: kurtosis >= 1 + skewness^2.
    return _NORMAL.cdf((ratio - benchmark) * math.sqrt((track.returns - 1) / max(spread, 1e-12)))


def independent_trials(candidates: int, correlation: float) -> float:
    """Returns the effective number of independent trials, N = r + (1 - r) M (appendix 3 of the paper).

    Args:
        candidates: Number of candidates that were tried, M.
        correlation: Average correlation between them, r; a negative one counts as 0.
    """
    share = min(1.0, max(0.0, correlation))
    return share + (1 - share) * candidates


def expected_maximum_sharpe_ratio(sharpe_variance: float, trials: float) -> float:
    """Returns the expected highest Sharpe ratio of some trials whose true Sharpe ratio is 0 (equation 1 of the paper).

    SR0 = sqrt(V) ((1 - g) Z^-1(1 - 1/N) + g Z^-1(1 - 1/(N e))), with g the Euler-Mascheroni constant.

    Args:
        sharpe_variance: Variance of the Sharpe ratios of the trials, V.
        trials: Number of independent trials, N. With a single one there is no selection, so the result is 0.
    """
    if trials <= 1:
        return 0.0
    highest = _NORMAL.inv_cdf(1 - 1 / trials)
    beyond = _NORMAL.inv_cdf(1 - 1 / (trials * math.e))
    # The formula is an approximation for many trials; for fewer than two it may fall below 0.
    return math.sqrt(sharpe_variance) * max(0.0, (1 - EULER_MASCHERONI) * highest + EULER_MASCHERONI * beyond)


def summary(deflation: Deflation) -> str:
    """Returns the result and what it was computed from, as one human-readable line; ratios are annualized."""
    year, track = math.sqrt(TRADING_DAYS_A_YEAR), deflation.track
    return (
        f"deflated Sharpe ratio {deflation.deflated_sharpe_ratio:.3f}: the probability that the true Sharpe ratio is"
        f" above 0, if the champion was the best of {deflation.candidates} candidates"
        f" ({deflation.independent_trials:.1f} independent trials at an average correlation of"
        f" {deflation.correlation:.2f}); the best of so many without skill is expected to have a Sharpe ratio of"
        f" {deflation.expected_maximum * year:.2f}, the champion has {track.sharpe_ratio * year:.2f} over"
        f" {track.returns} daily returns (skewness {track.skewness:.2f}, kurtosis {track.kurtosis:.2f}); without"
        f" selection the probability would be {deflation.probabilistic_sharpe_ratio:.3f}"
    )


def as_json(deflation: Deflation) -> dict[str, float]:
    """Returns the fields by name, those of the track among them; ratios and variance are per return."""
    return {name: value for name, value in asdict(deflation).items() if name != "track"} | asdict(deflation.track)


def deflate(
    account_value: Sequence[float], yearly_sharpe_ratios: Sequence[float], correlation: float
) -> Deflation | None:
    """Returns the deflated Sharpe ratio of a champion (equation 2 of the paper).

    Args:
        account_value: The champion's account at each day's close.
        yearly_sharpe_ratios: Annualized Sharpe ratio of every candidate that was tried, in the evaluation that selected
            it.
        correlation: Average correlation between candidates.

    Returns:
        None if there are fewer than two candidates, or the champion's returns have no Sharpe ratio.
    """
    track = track_of(account_value)
    if track is None or len(yearly_sharpe_ratios) < 2:
        return None
    spread = variance(yearly_sharpe_ratios) / TRADING_DAYS_A_YEAR
    trials = independent_trials(len(yearly_sharpe_ratios), correlation)
    benchmark = expected_maximum_sharpe_ratio(spread, trials)
    return Deflation(
        track=track,
        candidates=len(yearly_sharpe_ratios),
        independent_trials=trials,
        correlation=correlation,
        sharpe_variance=spread,
        expected_maximum=benchmark,
        probabilistic_sharpe_ratio=probabilistic_sharpe_ratio(track),
        deflated_sharpe_ratio=probabilistic_sharpe_ratio(track, benchmark),
    )
