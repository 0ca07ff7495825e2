"""Estimates how good candidates are, from the scores of their trial and of the whole tournament. Pure.

A trial is a chain of agents that continue each other unchanged. A board ranks by estimates. The estimate of a candidate
is the mean m of the last two scores of its trial: a single score is lucky or unlucky, and the best of many is almost
always lucky. If the two differ by more than luck explains, the policy itself has changed, and its own score counts
more. With d its score minus the one before, and e the standard error of d:

    estimate = m + w d / 2,   w = u / (u + e^2),   u = max(0, d^2 - 4 e^2)

This is shrinkage towards the mean, as in leaderboard.ranking.fresh_scores, except that it begins at two standard
errors: many scores are compared, and some are lucky. A trial with one score is estimated at that score minus half its
standard error. Scores are first moved to evaluation epoch 0 (leaderboard.ranking.epochs).

An estimate uses only what was known when its candidate arrived, and is stored with it, so later arrivals change neither
it nor the board.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leaderboard.ranking.board import trial_key
from leaderboard.ranking.epochs import Anchor, EpochEffects, EpochResult, epoch_effects
from leaderboard.ranking.game_history import GameHistory
from podrace.comparison.paired import PooledCorrelation, Returns
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

COMPARED_TRIALS = 8
"""Number of trials whose latest candidate a new one is compared with for the correlation: the latest of the epoch."""
CLEAR_ERRORS = 2.0
"""Standard errors of the difference of two scores that luck may explain."""
CLEAR_EPISODES = 8
"""Episodes from which a standard error is reliable enough for that: the first stage of racing."""


@dataclass(frozen=True)
class Estimate:
    """How good a candidate is."""

    value: float
    """Expected return on the episodes of epoch 0."""
    error: float
    """Its standard error."""


class ScoreHistory:
    """The scores of a tournament in order of arrival.

        history = ScoreHistory(candidates)
        estimate = history.estimate(new)
        history.add(new)

    Attributes:
        episodes: Correlation of the episodes.
        games: The rated candidates; empty unless candidates play against each other.
    """

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self.episodes = PooledCorrelation()
        self.games = GameHistory()
        self.anchors: list[Anchor] = []
        self._last: dict[tuple[int, bool], EpochResult] = {}
        """Latest result of each trial, apart for the two kinds of evaluators."""
        self._unclear: set[tuple[int, bool]] = set()
        """Those of `_last` whose standard error is not reliable."""
        self._epoch = 0
        """Epoch of the latest candidate with returns."""
        self._recent: OrderedDict[int, Returns] = OrderedDict()
        """Returns of the latest candidate of each trial in that epoch, in order of arrival."""
        for candidate in candidates:
            self.add(candidate)

    def copy(self) -> "ScoreHistory":
        """Returns a copy, which can be continued separately."""
        other = ScoreHistory()
        other.episodes, other.anchors, other.games = self.episodes.copy(), list(self.anchors), self.games.copy()
        other._last, other._unclear = dict(self._last), set(self._unclear)
        other._epoch, other._recent = self._epoch, self._recent.copy()
        return other

    @property
    def correlation(self) -> float:
        """Correlation of the returns of different agents on the same episodes; 0 if unknown."""
        return self.episodes.value

    def effects(self, further: Iterable[Candidate] = ()) -> EpochEffects:
        """Returns by how much the scores of each epoch are higher than in epoch 0."""
        anchors = [*self.anchors, *(anchor_of(candidate) for candidate in further)]
        return epoch_effects(anchors, self.correlation)

    def estimate(self, candidate: Candidate) -> Estimate:
        """Estimates a candidate that has just arrived."""
        effects = self.effects([candidate])
        result = result_of(candidate)
        score = result.score - effects.of(result.epoch)
        last = self._last.get(_key(candidate))
        if last is None:
            return Estimate(score - result.standard_error / 2, result.standard_error)
        # The noise of two scores on the same episodes has a common part.
        common = max(0.0, self.correlation) if last.epoch == result.epoch else 0.0
        one, other = result.standard_error, last.standard_error
        both = 2 * common * one * other
        lead, noise = score - (last.score - effects.of(last.epoch)), one * one + other * other - both
        reliable = _is_reliable(candidate) and _key(candidate) not in self._unclear
        own = (1 + _own_weight(lead, noise)) / 2 if reliable else 0.5
        error = math.sqrt((own * one) ** 2 + ((1 - own) * other) ** 2 + own * (1 - own) * both)
        return Estimate(score - (1 - own) * lead, error)

    def add(self, candidate: Candidate) -> None:
        """Adds the next candidate."""
        self._last[_key(candidate)] = result_of(candidate)
        (self._unclear.discard if _is_reliable(candidate) else self._unclear.add)(_key(candidate))
        self.games.add(candidate)
        if candidate.other_epochs:
            self.anchors.append(anchor_of(candidate))
        if not candidate.episode_returns or candidate.evaluator_fault:
            return
        if self._epoch != candidate.evaluation_epoch:
            self._epoch = candidate.evaluation_epoch
            self._recent.clear()
        returns = Returns(candidate.episode_returns)
        self._recent.pop(trial_key(candidate), None)
        for other in self._recent.values():
            self.episodes.add(returns, other)
        self._recent[trial_key(candidate)] = returns
        while len(self._recent) > COMPARED_TRIALS:
            self._recent.popitem(last=False)


def add_estimate(candidate: Candidate, history: ScoreHistory) -> None:
    """Adds what the board ranks a candidate by, as far as it is known when the candidate arrives."""
    estimate = history.estimate(candidate)
    candidate.estimate, candidate.estimate_error = estimate.value, estimate.error
    candidate.episode_correlation = history.correlation


class RoundHistory:
    """The score history that candidates of a synchronous tournament are estimated by.

    It covers the earlier rounds and the agent's own earlier candidates, which do not depend on which pod was faster.
    """

    def __init__(self) -> None:
        self._known = (-1, -1)
        """First number of the round, and how many candidates the history of the earlier rounds has."""
        self._earlier = ScoreHistory()

    def of(self, spec: TournamentSpec, seen: Sequence[Candidate], candidate: Candidate) -> ScoreHistory:
        """Returns the history for a new candidate.

        Args:
            spec: Resolved specification.
            seen: All earlier candidates of the tournament.
            candidate: The new one.
        """
        begin = candidate.agent_number - candidate.agent_number % max(1, spec.pool.maximum_pods)
        earlier = [other for other in seen if other.agent_number < begin]
        if self._known != (begin, len(earlier)):
            self._known = begin, len(earlier)
            self._earlier = ScoreHistory(sorted(earlier, key=lambda other: (other.agent_number, other.sequence)))
        history = self._earlier.copy()
        for other in seen:
            if other.agent_id == candidate.agent_id:
                history.add(other)
        return history


def result_of(candidate: Candidate) -> EpochResult:
    """Returns the score of a candidate with its epoch; 0 if that is unknown."""
    return EpochResult(candidate.evaluation_epoch, candidate.score, candidate.standard_error)


def anchor_of(candidate: Candidate) -> Anchor:
    """Returns all scores of a checkpoint."""
    others = [EpochResult(one.epoch, one.mean_return, one.standard_error) for one in candidate.other_epochs]
    return [result_of(candidate), *others]


def _own_weight(lead: float, noise: float) -> float:
    """Returns w of the module's description.

    Args:
        lead: d, the difference of two scores.
        noise: e^2, its variance.
    """
    excess = lead * lead - CLEAR_ERRORS**2 * noise
    return excess / (excess + noise) if excess > 0 else 0.0


def _is_reliable(candidate: Candidate) -> bool:
    """Whether the standard error says how precise a score is. Ratings also depend on the opponents."""
    return candidate.episodes >= CLEAR_EPISODES and not candidate.matches


def _key(candidate: Candidate) -> tuple[int, bool]:
    # Scores of an evaluator plugin and of the built-in evaluator are different numbers.
    return trial_key(candidate), bool(candidate.evaluator_fault)
