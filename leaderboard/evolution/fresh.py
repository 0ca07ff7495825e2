"""Owns what fresh agents look like: that depends on the specification, its seed and the agent's number alone; and, once
one has, on which algorithms have left the draw (leaderboard.evolution.allocation).

Algorithms take turns in proportion to their ratios: the turn of a number is fixed, and over the first numbers the
shares are as exact as whole agents allow (1 : 1 : 1 gives each one agent in three). An algorithm's first turn has
exactly the values that the specification states; later ones are drawn where the specification searches.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from leaderboard.evolution.randomness import stream
from leaderboard.evolution.space import Value, declared_values, spaces_of
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SMALLEST_RATIO = 1_000_000
"""A ratio less than one in this many of the largest counts as 0."""


@dataclass(frozen=True)
class Turn:
    """Whose turn a number is."""

    algorithm: str
    """Name of the algorithm."""
    first: bool
    """No lower number is this algorithm's."""


def draw(spec: TournamentSpec, number: int, turn: Turn | None = None) -> tuple[Turn, dict[str, Value]]:
    """Returns whose turn an agent's number is, and every hyperparameter it has if it is fresh.

    Args:
        spec: Resolved.
        number: Position in the sequence of agents.
        turn: Whose turn it is; None: as the number says.
    """
    turn = turn or turn_of(spec, number)
    algorithm = spec.algorithms[turn.algorithm]
    values = declared_values(algorithm)
    if not turn.first:
        random = stream(spec.seed, "fresh", number)
        values |= {name: space.draw(random) for name, space in spaces_of(turn.algorithm, algorithm).items()}
    return turn, values


def turn_of(spec: TournamentSpec, number: int, left: Collection[str] = ()) -> Turn:
    """Whose turn a number is, by smooth weighted round-robin.

    Each turn, every algorithm is credited with its weight; the one with most credit (the first by name among equals)
    has the turn and pays the sum of all weights. After that sum of turns every credit is 0 and everything begins
    again.

    Args:
        spec: Resolved.
        number: Position in the sequence of agents.
        left: Algorithms that have left the draw: the others have all turns, as if they had been alone from the start.
    """
    ratios = {name: algorithm.ratio for name, algorithm in spec.algorithms.items()}
    turns = _turns({name: ratio for name, ratio in ratios.items() if name not in left}, number)
    return Turn(turns[-1], first=number < len(turns) and turns[-1] not in turns[:-1])


def _turns(ratios: Mapping[str, float], number: int) -> list[str]:
    """Whose turns they are in the period that a number is in, up to that number."""
    weights = _weights(ratios)
    period = sum(weights.values())
    credit = dict.fromkeys(weights, 0)
    turns = []
    for _ in range(number % period + 1):
        credit = {name: credit[name] + weight for name, weight in weights.items()}
        turns.append(max(credit, key=lambda name: credit[name]))
        credit[turns[-1]] -= period
    return turns


def _weights(ratios: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers in the same proportion, by name in alphabetical order; algorithms without a share are left out."""
    largest = max(ratios.values())
    shares = {name: Fraction(ratio / largest).limit_denominator(SMALLEST_RATIO) for name, ratio in ratios.items()}
    denominator = lcm(*(share.denominator for share in shares.values()))
    return {name: int(share * denominator) for name, share in sorted(shares.items()) if share}
