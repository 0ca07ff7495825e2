"""Rates players by the results of their games: Bradley-Terry, fitted to all results at once. Pure.

Player i with strength s_i beats player j with probability p = 1 / (1 + exp(s_j - s_i)) (Bradley and Terry, "Rank
Analysis of Incomplete Block Designs", 1952). A draw counts as half a win for both. The strengths maximize

    sum over results (w + d/2) log p + (l + d/2) log(1 - p) - sum over players s_i^2 / (2 PRIOR^2)

which is concave; Newton's method finds the maximum. Some strengths may be known: that of the built-in opponent of the
environment is 0, which fixes the scale. The prior keeps the strength of a player finite that has won all its games.
Standard errors are those of the inverse Hessian (Laplace's approximation). Linear systems are solved by conjugate
gradients, because each player has few opponents and the leaderboard has no package for dense algebra.

Ratings are strengths times SCALE = 400 / ln 10, the units of Elo: 400 more mean odds of 10 to 1.

One number for each player cannot describe a cycle, in which each of three players beats the next one. All of them get
the same rating then, so a cycle is no progress. The misfit shows it: the sum of (observed - expected points)^2 /
variance over the pairs of players is about as large as the number of pairs minus that of free strengths if the
ratings describe the results, and much larger otherwise. A large misfit has other causes as well, such as styles of play
that suit each other; `circle` finds a cycle of leads that are no chance.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BUILT_IN = ""
"""Name of the built-in opponent, whose rating is 0."""
SCALE = 400.0 / math.log(10.0)
PRIOR = 800.0 / SCALE
"""Standard deviation of strengths before any game."""
STEPS, TOLERANCE = 50, 1e-9
LEAST_EXPECTED_VARIANCE = 1e-6
LEAD_ERRORS = 2.0
"""Standard errors by which a share of points must exceed a half to count as a lead."""
MISFIT_DEVIATIONS = 3.0
"""Standard deviations by which a misfit must exceed its mean to count as large; about 1 in 300 does by chance."""


@dataclass(frozen=True)
class Result:
    """Games between two players, seen from the first."""

    player: str
    opponent: str
    wins: float
    draws: float
    losses: float

    @property
    def games(self) -> float:
        """Number of games."""
        return self.wins + self.draws + self.losses

    @property
    def points(self) -> float:
        """Wins, and half of the draws."""
        return self.wins + self.draws / 2


@dataclass(frozen=True)
class Rating:
    """How strong a player is."""

    value: float
    """In the units of Elo; 0 is the built-in opponent."""
    error: float
    """Its standard error."""


@dataclass(frozen=True)
class Misfit:
    """How badly ratings describe the results."""

    value: float
    """Sum over pairs of players of (observed - expected points)^2 / variance."""
    freedom: int
    """What the value is on average if the ratings describe the results."""

    @property
    def large(self) -> bool:
        """Whether chance alone does not explain it."""
        spread = math.sqrt(2.0 * max(1, self.freedom))
        return self.freedom > 0 and self.value > self.freedom + MISFIT_DEVIATIONS * spread


class Ratings:
    """Strengths of players, fitted to results.

    Attributes:
        strengths: Natural logarithm of the odds against the built-in opponent, by player.
    """

    def __init__(self, results: Iterable[Result], known: Mapping[str, Rating] | None = None) -> None:
        """Fits the strengths.

        Args:
            results: Results; several of one pair are added. Games of a player against itself are ignored.
            known: Ratings that are not fitted, besides that of the built-in opponent.
        """
        self._pairs = _pooled(results)
        self._known = {BUILT_IN: Rating(0.0, 0.0), **(known or {})}
        self._names = sorted({name for pair in self._pairs for name in pair} - self._known.keys())
        self.strengths = dict.fromkeys(self._names, 0.0)
        for _ in range(STEPS):
            gradient, weights = self._gradient(), self._weights()
            change = self._solve(weights, gradient)
            # A step of more than two units of log-odds would leave the region that the quadratic model describes.
            length = max((abs(value) for value in change.values()), default=0.0)
            factor = min(1.0, 2.0 / length) if length else 1.0
            for name, value in change.items():
                self.strengths[name] += factor * value
            if length < TOLERANCE:
                break
        self._final_weights = self._weights()

    def strength(self, name: str) -> float:
        """Returns the strength of a player; 0 for players without games."""
        return self._known[name].value / SCALE if name in self._known else self.strengths.get(name, 0.0)

    def rating(self, name: str) -> Rating:
        """Returns the rating of a player; that of the prior if it has no games.

        The errors of known ratings are propagated: with x the row of the inverse Hessian, the strength changes by
        sum_i x_i w_ij for a change of a known strength s_j.
        """
        if name in self._known:
            return self._known[name]
        if name not in self.strengths:
            return Rating(0.0, PRIOR * SCALE)
        row = self._solve(self._final_weights, dict.fromkeys(self._names, 0.0) | {name: 1.0})
        sensitivity: defaultdict[str, float] = defaultdict(float)
        for pair in self._final_weights:
            for one, other in (pair[:2], pair[1::-1]):
                if other in self._known and one in row:
                    sensitivity[other] += row[one] * pair[2]
        known = math.fsum((change * self._known[other].error) ** 2 for other, change in sensitivity.items())
        return Rating(SCALE * self.strengths[name], math.sqrt(SCALE**2 * row[name] + known))

    def misfit(self) -> Misfit:
        """Returns how badly the ratings describe the results."""
        total = 0.0
        for (one, other), (points, games) in self._pairs.items():
            expected = expected_points(self.strength(one), self.strength(other))
            variance = max(games * expected * (1.0 - expected), LEAST_EXPECTED_VARIANCE)
            total += (points - games * expected) ** 2 / variance
        # The strengths of players without a chain of games to a known strength have no common zero.
        free = len(self._names) - sum(not group & self._known.keys() for group in _connected(self._pairs))
        return Misfit(total, len(self._pairs) - free)

    def _gradient(self) -> dict[str, float]:
        gradient = {name: -strength / PRIOR**2 for name, strength in self.strengths.items()}
        for (one, other), (points, games) in self._pairs.items():
            surplus = points - games * expected_points(self.strength(one), self.strength(other))
            for name, value in ((one, surplus), (other, -surplus)):
                if name in gradient:
                    gradient[name] += value
        return gradient

    def _weights(self) -> list[tuple[str, str, float]]:
        """Returns the information of each pair: games p (1 - p)."""
        found = []
        for (one, other), (_, games) in self._pairs.items():
            expected = expected_points(self.strength(one), self.strength(other))
            found.append((one, other, games * expected * (1.0 - expected)))
        return found

    def _solve(self, weights: Sequence[tuple[str, str, float]], wanted: Mapping[str, float]) -> dict[str, float]:
        """Solves H x = wanted, with H the negative Hessian, by conjugate gradients (Hestenes and Stiefel 1952)."""
        solution = dict.fromkeys(wanted, 0.0)
        residual, size = dict(wanted), _dot(wanted, wanted)
        direction, enough = dict(wanted), 1e-22 * size
        for _ in range(2 * len(solution) + 10):
            if size <= enough or not size:
                break
            turned = _turned(weights, direction)
            step = size / _dot(direction, turned)
            for name, value in direction.items():
                solution[name] += step * value
                residual[name] -= step * turned[name]
            before, size = size, _dot(residual, residual)
            direction = {name: residual[name] + size / before * value for name, value in direction.items()}
        return solution


def expected_points(one: float, other: float) -> float:
    """Returns the expected points of a game between two strengths, for the first."""
    difference = min(max(one - other, -500.0), 500.0)
    return 1.0 / (1.0 + math.exp(-difference))


def circle(results: Iterable[Result], player: str) -> list[str]:
    """Returns the players of a shortest cycle in which each beats the next, from a player on; empty without one.

    A player beats another one if its share of their points exceeds a half by more than LEAD_ERRORS standard errors.
    """
    beats: defaultdict[str, list[str]] = defaultdict(list)
    for (one, other), (points, games) in _pooled(results).items():
        lead = points / games - 0.5
        if abs(lead) > LEAD_ERRORS * 0.5 / math.sqrt(games):
            beats[one if lead > 0 else other].append(other if lead > 0 else one)
    paths, seen = deque([[player]]), {player}
    while paths:
        path = paths.popleft()
        for beaten in sorted(beats[path[-1]]):
            if beaten == player:
                return path
            if beaten not in seen:
                seen.add(beaten)
                paths.append([*path, beaten])
    return []


def most_informative(player: float, candidates: Iterable[tuple[str, float]], count: int) -> list[str]:
    """Returns the most informative opponents of a player: those with the largest expected variance of a result.

    The variance p (1 - p) is also the information that a game gives about the difference of two strengths. Equal
    opponents keep their order.

    Args:
        player: Strength of the player, as far as it is known.
        candidates: Names and strengths of possible opponents.
        count: Most opponents to return.
    """

    def variance(strength: float) -> float:
        expected = expected_points(player, strength)
        return expected * (1.0 - expected)

    ordered = sorted(candidates, key=lambda one: -variance(one[1]))
    return [name for name, _ in ordered[:count]]


def _connected(pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Returns the groups of players that are connected by games."""
    groups: list[set[str]] = []
    for pair in pairs:
        joined = {*pair}.union(*(group for group in groups if group & {*pair}))
        groups = [*(group for group in groups if not group & {*pair}), joined]
    return groups


def _pooled(results: Iterable[Result]) -> dict[tuple[str, str], tuple[float, float]]:
    """Returns points of the first and games of each pair of players, in the order of the names."""
    points: defaultdict[tuple[str, str], float] = defaultdict(float)
    games: defaultdict[tuple[str, str], float] = defaultdict(float)
    for one in results:
        if one.player == one.opponent or not one.games:
            continue
        swapped = one.opponent < one.player
        pair = (one.opponent, one.player) if swapped else (one.player, one.opponent)
        points[pair] += one.games - one.points if swapped else one.points
        games[pair] += one.games
    return {pair: (points[pair], games[pair]) for pair in sorted(games)}


def _turned(weights: Sequence[tuple[str, str, float]], vector: Mapping[str, float]) -> dict[str, float]:
    """Multiplies a vector by the negative Hessian."""
    result = {name: value / PRIOR**2 for name, value in vector.items()}
    for one, other, weight in weights:
        value = weight * (vector.get(one, 0.0) - vector.get(other, 0.0))
        if one in result:
            result[one] += value
        if other in result:
            result[other] -= value
    return result


def _dot(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return math.fsum(value * other[name] for name, value in one.items())
