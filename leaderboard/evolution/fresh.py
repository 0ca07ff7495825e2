"""Draws the algorithm and the hyperparameters of fresh agents.

They depend only on the specification, its seed, the number of the agent, and the algorithms that have left the draw
(leaderboard.evolution.allocation).

Algorithms take turns in proportion to their ratios. The algorithm of each number is fixed, and among the first numbers
the shares are as exact as whole agents allow (1 : 1 : 1 gives each algorithm one agent in three). The first agent of an
algorithm has exactly the values of the specification; for later ones, searched values are drawn.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from leaderboard.evolution.space import Value, declared_values, spaces_of
from leaderboard.seeding import stream
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SMALLEST_RATIO = 1_000_000
"""A ratio less than one in this many of the largest counts as 0."""


@dataclass(frozen=True)
class Turn:
    """The algorithm of a number."""

    algorithm: str
    """Name of the algorithm."""
    first: bool
    """Whether no lower number has this algorithm."""


def draw(spec: TournamentSpec, number: int, turn: Turn | None = None) -> tuple[Turn, dict[str, Value]]:
    """Returns the algorithm and every hyperparameter of a fresh agent.

    Args:
        spec: Resolved specification.
        number: Position in the sequence of agents.
        turn: The algorithm; None: that of the number.
    """
    turn = turn or turn_of(spec, number)
    algorithm = spec.algorithms[turn.algorithm]
    values = declared_values(algorithm)
    if not turn.first:
        random = stream(spec.seed, "fresh", number)
        values |= {name: space.draw(random) for name, space in spaces_of(turn.algorithm, algorithm).items()}
    return turn, values


def turn_of(spec: TournamentSpec, number: int, left: Collection[str] = ()) -> Turn:
    """Returns the algorithm of a number, by smooth weighted round-robin.

    At each turn, every algorithm is credited with its weight. The one with the most credit (among equals, the first by
    name) gets the turn and pays the sum of all weights. After as many turns as that sum, every credit is 0 and the
    sequence repeats.

    Args:
        spec: Resolved specification.
        number: Position in the sequence of agents.
        left: Algorithms that have left the draw. The others share all turns, as if these did not exist.
    """
    ratios = {name: algorithm.ratio for name, algorithm in spec.algorithms.items()}
    turns = _turns({name: ratio for name, ratio in ratios.items() if name not in left}, number)
    return Turn(turns[-1], first=number < len(turns) and turns[-1] not in turns[:-1])


def _turns(ratios: Mapping[str, float], number: int) -> list[str]:
    """Returns the algorithms of the turns from the begin of the period of a number to that number."""
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
    """Returns whole numbers in the same proportion, in alphabetical order; algorithms with a share of 0 are left
    out.
    """
    largest = max(ratios.values())
    shares = {name: Fraction(ratio / largest).limit_denominator(SMALLEST_RATIO) for name, ratio in ratios.items()}
    denominator = lcm(*(share.denominator for share in shares.values()))
    return {name: int(share * denominator) for name, share in sorted(shares.items()) if share}
