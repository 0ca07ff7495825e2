"""Draws the algorithm and the hyperparameters of fresh agents.

They depend only on the specification, its seed, the number of the agent, and the algorithms that have been eliminated
(leaderboard.evolution.allocation).

Algorithms take turns in proportion to their ratios. The algorithm of each number is fixed, and among the first numbers
the shares are as exact as whole agents allow (1 : 1 : 1 gives each algorithm one agent in three). The first agent of an
algorithm has exactly the values of the specification, or the first agents have those of its `starts`, in order; for
later ones, searched values are drawn. With `search = "wide"` they are drawn for the first agent too.

A strategy may instead give the turns by pod time (`turn_by_pod_time`), or by environment steps in a synchronous
tournament: agents of different algorithms, and agents that are stopped early or continued, do not take the same time,
so equal numbers of agents are not equal shares of the pods.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from threading import Lock
from types import MappingProxyType

from leaderboard.evolution.space import Value, declared_values, plain, spaces_of
from leaderboard.seeding import stream
from podrace.specification.conditions import settled
from podrace.specification.presets import trusts_values
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SMALLEST_RATIO = 1_000_000
"""A ratio less than one in this many of the largest counts as 0."""

MOST_PERIODS = 32
"""Periods whose turns are kept: one for each set of ratios in use."""


@dataclass(frozen=True)
class Turn:
    """The algorithm of a number."""

    algorithm: str
    """Name of the algorithm."""
    first: bool
    """Whether no lower number has this algorithm."""
    ordinal: int | None = None
    """How many lower numbers have this algorithm; None: not counted."""

    def start(self, spec: TournamentSpec) -> Mapping[str, Value] | None:
        """Returns what `algorithms.NAME.starts` gives to a fresh agent of this turn; None: nothing."""
        starts = spec.algorithms[self.algorithm].starts
        position = 0 if self.first else self.ordinal
        if position is None or position >= len(starts):
            return None
        return {name: plain(value) for name, value in sorted(starts[position].fields.items())}


def draw(
    spec: TournamentSpec, number: int, turn: Turn | None = None, given: Mapping[str, Value] = MappingProxyType({})
) -> tuple[Turn, dict[str, Value]]:
    """Returns the algorithm and every hyperparameter of a fresh agent.

    Args:
        spec: Resolved specification.
        number: Position in the sequence of agents.
        turn: The algorithm; None: that of the number.
        given: Values that replace drawn ones.
    """
    turn = turn or turn_of(spec, number)
    algorithm, start = spec.algorithms[turn.algorithm], turn.start(spec)
    values = declared_values(algorithm)
    if start is not None:
        values |= start
    elif not (turn.first and trusts_values(spec)):
        random = stream(spec.seed, "fresh", number)
        values |= {name: space.draw(random) for name, space in spaces_of(turn.algorithm, algorithm).items()}
    return turn, settled(algorithm.hyperparameters, {**values, **given})


def source_of_values(spec: TournamentSpec, turn: Turn) -> str:
    """Describes where the values of a fresh agent are from."""
    if turn.start(spec) is not None:
        return f"values of starts[{0 if turn.first else turn.ordinal}]"
    return "values as specified" if turn.first and trusts_values(spec) else "searched values drawn"


def turn_of(spec: TournamentSpec, number: int, left: Collection[str] = ()) -> Turn:
    """Returns the algorithm of a number, by smooth weighted round-robin.

    At each turn, every algorithm is credited with its weight. The one with the most credit (among equals, the first by
    name) gets the turn and pays the sum of all weights. After as many turns as that sum, every credit is 0 and the
    sequence repeats.

    Args:
        spec: Resolved specification.
        number: Position in the sequence of agents.
        left: Algorithms that have been eliminated. The others share all turns, as if these did not exist.
    """
    ratios = {name: algorithm.ratio for name, algorithm in spec.algorithms.items() if name not in left}
    weights = _weights(ratios)
    periods, position = divmod(number, sum(weights.values()))
    name, earlier = _period_of(tuple(weights.items())).turn(position)
    # In a whole period each algorithm has as many turns as its weight.
    ordinal = earlier + periods * weights[name]
    return Turn(name, first=ordinal == 0, ordinal=ordinal)


def turn_by_pod_time(spec: TournamentSpec, pod_seconds: Mapping[str, float], left: Collection[str] = ()) -> Turn:
    """Returns the algorithm whose pod time is furthest below its share, in seconds; among equals, the first by name.

    An algorithm without any agent comes before all others, the one with the largest ratio first. However long the
    agents of each algorithm take, the shares of pod time therefore approach the ratios.

    Args:
        spec: Resolved specification.
        pod_seconds: Pod time by algorithm, of all agents that were generated: finished, stopped or running. It must
            name every algorithm that has an agent, even if the agent has taken no time yet. The unit is irrelevant as
            long as it is the same for all: core-seconds if the pods differ in cores.
        left: Eliminated algorithms. The others share all pod time from the beginning, as if these did not exist.

    Raises:
        ValueError: No algorithm has a positive ratio and has not been eliminated.
    """
    ratios = {name: algorithm.ratio for name, algorithm in spec.algorithms.items() if name not in left}
    weights = _weights(ratios) if any(ratio > 0 for ratio in ratios.values()) else {}
    if not weights:
        raise ValueError("no algorithm with a positive ratio is left")
    new = [name for name in weights if name not in pod_seconds]
    if new:
        return Turn(max(new, key=lambda name: weights[name]), first=True)
    spent, total = sum(pod_seconds[name] for name in weights), sum(weights.values())
    return Turn(max(weights, key=lambda name: spent * weights[name] / total - pod_seconds[name]), first=False)


class _Period:
    """The turns of one period, computed as far as they were needed: it may have millions. Safe for use by threads."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights, self._sum, self._lock = weights, sum(weights.values()), Lock()
        self._credit, self._counts = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
        self._turns: list[tuple[str, int]] = []

    def turn(self, position: int) -> tuple[str, int]:
        """Returns the algorithm at a position of the period, and how many turns of the period it has had before."""
        with self._lock:
            while len(self._turns) <= position:
                self._add_turn()
            return self._turns[position]

    def _add_turn(self) -> None:
        for name, weight in self._weights.items():
            self._credit[name] += weight
        name = max(self._credit, key=lambda name: self._credit[name])
        self._credit[name] -= self._sum
        self._turns.append((name, self._counts[name]))
        self._counts[name] += 1


@lru_cache(maxsize=MOST_PERIODS)
def _period_of(weights: tuple[tuple[str, int], ...]) -> _Period:
    return _Period(dict(weights))


def _weights(ratios: Mapping[str, float]) -> dict[str, int]:
    """Returns whole numbers in the same proportion, in alphabetical order; algorithms with a share of 0 are left
    out.
    """
    largest = max(ratios.values())
    shares = {name: Fraction(ratio / largest).limit_denominator(SMALLEST_RATIO) for name, ratio in ratios.items()}
    denominator = lcm(*(share.denominator for share in shares.values()))
    return {name: int(share * denominator) for name, share in sorted(shares.items()) if share}
