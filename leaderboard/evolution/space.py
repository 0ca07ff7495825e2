"""Draws and moves values of searched hyperparameters within their ranges and choices.

Draws are uniform: over a linear range, over the logarithm of a logarithmic one, over the logarithm of 1 - x of a
reverse-logarithmic one, over choices. A range may have one extra value, which is drawn with
`zero_probability`: 0, or on the reverse-logarithmic scale 1, where 1 - x is 0.

A perturbation moves up or down with equal probability, by a factor f >= 1:
    logarithmic range            the value is multiplied or divided by f
    reverse-logarithmic range    1 - x is divided or multiplied by f
    linear range                 it moves by the share 1 - 1/f of the range (the share that division by f takes off a
                                 number)
    choices                      it moves to the neighbor in the order of the specification
A step moves the position of the value by a normally distributed distance. Positions are from 0 to 1 and uniform for
draws. A step of a choice is a move to a neighbor.

A value that would leave a range is reflected at its end (on the scale of the range). A perturbed value is clipped if it
then leaves the other end. With clipping alone, values would stay at the ends, where half of all moves would change
nothing. Where the extra value lies beyond an end, a move beyond that end gives the extra value, and a perturbation of
the extra value gives that end. Whole numbers are rounded and move by at least 1. With f = 1, or steps of size 0,
nothing moves.
"""

import math
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import cast

from google.protobuf import json_format, struct_pb2

from leaderboard.seeding import draw_one, happens
from podrace.specification import catalog
from podrace.specification.declared_algorithms import entry_of
from podrace.specification.environment_search import COUNT, PREFIX
from podrace.tournament.v1.tournament_pb2 import SCALE_LOG, SCALE_REVERSE_LOG, AlgorithmSpec, HyperparameterSpec

Value = float | bool | str | list[float]
"""Value of a hyperparameter in JSON; whole numbers are floats."""
_SMALLEST_DRAW = 2.0**-54
"""Stands for a random number of 0, whose normal quantile is infinite."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included, and perhaps one extra value."""

    low: float
    high: float
    logarithmic: bool = False
    """Draws are uniform in the logarithm, moves are factors; `low` is positive."""
    whole: bool = False
    """Only whole numbers."""
    reverse: bool = False
    """As `logarithmic`, but of 1 - x; `high` is less than 1."""
    zero_probability: float = 0.0
    """Probability that a draw gives the extra value: 0, or 1 if `reverse`. With 0 there is no extra value."""

    @property
    def extra(self) -> float | None:
        """The extra value; None if there is none."""
        return float(self.reverse) if self.zero_probability else None

    def contains(self, value: object) -> bool:
        """Returns whether a value is a number from `low` to `high`, or the extra value."""
        if not isinstance(value, float) or (self.whole and not value.is_integer()):
            return False
        return self.low <= value <= self.high or value == self.extra

    def draw(self, random: Random) -> float:
        """Draws a value."""
        share = random.random()
        if self.extra is not None:
            if share < self.zero_probability:
                return self.extra
            share = (share - self.zero_probability) / (1 - self.zero_probability)
        # Whole numbers are drawn from half a unit beyond the ends, so that all are equally likely.
        low, high = (math.ceil(self.low) - 0.5, math.floor(self.high) + 0.5) if self.whole else (self.low, self.high)
        drawn = self._between(low, high, share)
        return self._clipped(round(drawn) if self.whole else drawn)

    def perturb(self, value: float, factor: float, random: Random) -> float:
        """Moves a value up or down."""
        upward = happens(random, 0.5)
        if factor == 1:
            return value
        return self._settled(value, self._moved(value, factor, upward=upward), upward=upward)

    def scale(self, value: float, factor: float) -> float:
        """Scales a value."""
        if factor == 1:
            return value
        if self.reverse:
            moved = 1 - (1 - value) / factor
        else:
            moved = value * factor if self.logarithmic else value + (factor - 1) * (self.high - self.low)
        return self._settled(value, moved, upward=factor > 1)

    def step(self, value: float, size: float, random: Random) -> float:
        """Moves the position of a value by a normally distributed distance.

        Args:
            value: The value.
            size: Standard deviation of the distance.
            random: Random stream, of which one number is used.
        """
        quantile = NormalDist().inv_cdf(max(random.random(), _SMALLEST_DRAW))
        if size == 0:
            return value
        moved = self.at(_folded(self.position(value) + size * quantile))
        if moved == value == self.extra:
            return self._end_at_extra()
        if self.whole and moved == value:
            return self._next_whole(value, 1 if quantile > 0 else -1)
        return moved

    def at(self, position: float) -> float:
        """Returns the value at a position from 0 (the low end) to 1, on the scale of the range.

        The extra value has the positions below `zero_probability`, or above 1 - `zero_probability` if `reverse`.
        """
        if self.extra is not None:
            position = (position - self._begin) / (1 - self.zero_probability)
            if not 0 <= position <= 1:
                return self.extra
        value = self._between(self.low, self.high, position)
        return self._clipped(round(value) if self.whole else value)

    def position(self, value: float) -> float:
        """Returns the position of a value, from 0 to 1: the inverse of `at`. The extra value is in the middle of its
        positions.
        """
        if value == self.extra:
            return 1 - self.zero_probability / 2 if self.reverse else self.zero_probability / 2
        return self._begin + (1 - self.zero_probability) * self._share(value)

    def coordinate(self, value: float) -> float:
        """Returns a value on the scale of the range: x, log x or -log(1 - x); the extra value by its position."""
        if value == self.extra:
            low, high = self.coordinate(self.low), self.coordinate(self.high)
            return low + (self.position(value) - self._begin) / (1 - self.zero_probability) * (high - low)
        if self.reverse:
            return -math.log(1 - value)
        return math.log(value) if self.logarithmic else value

    @property
    def _begin(self) -> float:
        """Position of the low end."""
        return 0.0 if self.reverse else self.zero_probability

    def _between(self, low: float, high: float, share: float) -> float:
        if self.reverse:
            return 1 - (1 - low) * math.exp(share * math.log((1 - high) / (1 - low)))
        if self.logarithmic:
            return low * math.exp(share * math.log(high / low))
        return low + share * (high - low)

    def _share(self, value: float) -> float:
        """Returns the share of the range below a value, on its scale; values beyond an end count as the end."""
        inside = min(max(value, self.low), self.high)
        if self.reverse:
            return math.log((1 - inside) / (1 - self.low)) / math.log((1 - self.high) / (1 - self.low))
        if self.logarithmic:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)

    def _settled(self, value: float, moved: float, *, upward: bool) -> float:
        """Returns the result of a move: inside the range, and different from the value."""
        if value == self.extra:
            return self._end_at_extra()
        if self.extra is not None and (moved > self.high if self.reverse else moved < self.low):
            return self.extra
        moved = self._clipped(self._reflected(moved))
        if self.whole and (moved := self._clipped(round(moved))) == value:
            moved = self._next_whole(value, 1 if upward else -1)
        return moved

    def _moved(self, value: float, factor: float, *, upward: bool) -> float:
        if self.reverse:
            return 1 - ((1 - value) / factor if upward else (1 - value) * factor)
        if self.logarithmic:
            return value * factor if upward else value / factor
        step = (1 - 1 / factor) * (self.high - self.low)
        return value + step if upward else value - step

    def _reflected(self, value: float) -> float:
        if self.low <= value <= self.high:
            return value
        end = self.low if value < self.low else self.high
        if self.reverse:
            return 1 - (1 - end) * (1 - end) / (1 - value) if value < 1 else end
        return end * end / value if self.logarithmic and value else 2 * end - value

    def _end_at_extra(self) -> float:
        """Returns the end of the range next to the extra value."""
        return self._clipped(self.high if self.reverse else self.low)

    def _next_whole(self, value: float, direction: int) -> float:
        there = value + direction
        return self._clipped(there if self.low <= there <= self.high else value - direction)

    def _clipped(self, value: float) -> float:
        low, high = (math.ceil(self.low), math.floor(self.high)) if self.whole else (self.low, self.high)
        return float(min(max(value, low), high))


def _folded(position: float) -> float:
    """Reflects a position at 0 and 1 until it is between them."""
    distance = position % 2.0
    return min(distance, 2.0 - distance)


@dataclass(frozen=True)
class Choices:
    """An ordered list of values."""

    values: tuple[Value, ...]

    def contains(self, value: object) -> bool:
        """Returns whether a value is one of the choices."""
        return value in self.values

    def draw(self, random: Random) -> Value:
        """Draws a value."""
        return draw_one(random, self.values)

    def perturb(self, value: Value, factor: float, random: Random) -> Value:
        """Moves to a neighbor (at an end, the only one); a value that is not among the choices is drawn again."""
        upward = happens(random, 0.5)
        return value if factor == 1 else self.next(value, random, upward=upward)

    def step(self, value: Value, size: float, random: Random) -> Value:
        """Moves to a neighbor, as `perturb` does; with size 0 nothing moves."""
        return self.perturb(value, 1.0 + size, random)

    def next(self, value: Value, random: Random, *, upward: bool) -> Value:
        """Returns the neighbor on one side, as `perturb` does."""
        if len(self.values) == 1:
            return value
        if value not in self.values:
            return self.draw(random)
        position = self.values.index(value)
        there = position + (1 if upward else -1)
        return self.values[there if 0 <= there < len(self.values) else 2 * position - there]


Space = Range | Choices
"""The values that a searched hyperparameter may have."""


def perturbed(space: Space, value: Value, factor: float, random: Random) -> Value:
    """Moves a value within its space."""
    if isinstance(space, Range):
        return space.perturb(cast(float, value), factor, random)
    return space.perturb(value, factor, random)


def scaled(space: Space, value: Value, factor: float, random: Random) -> Value:
    """Scales a value within its space."""
    if isinstance(space, Range):
        return space.scale(cast(float, value), factor)
    return value if factor == 1 else space.next(value, random, upward=factor > 1)


def stepped(space: Space, value: Value, size: float, random: Random) -> Value:
    """Moves a value by a step of the given standard deviation, as a share of its range, within its space."""
    if isinstance(space, Range):
        return space.step(cast(float, value), size, random)
    return space.step(value, size, random)


def spaces_of(name: str, algorithm: AlgorithmSpec) -> dict[str, Space]:
    """Returns the spaces of the searched hyperparameters of an algorithm, in alphabetical order.

    Args:
        name: Name of the algorithm. Its declaration says which hyperparameters are whole numbers; JSON does not.
        algorithm: Its resolved specification.
    """
    searched = sorted(algorithm.hyperparameters.items())
    found = {key: _space_of(spec, whole=is_whole(name, algorithm, key)) for key, spec in searched}
    return {key: space for key, space in found.items() if space is not None}


def movable_spaces(name: str, algorithm: AlgorithmSpec) -> dict[str, Space]:
    """Returns the spaces of the searched hyperparameters that may change in a child; arguments as for `spaces_of`."""
    spaces = spaces_of(name, algorithm)
    return {key: space for key, space in spaces.items() if not is_structural(name, algorithm, key)}


def declared_values(algorithm: AlgorithmSpec) -> dict[str, Value]:
    """Returns every hyperparameter of a resolved algorithm with its value in the specification."""
    return {key: plain(spec.value) for key, spec in sorted(algorithm.hyperparameters.items())}


def is_whole(name: str, algorithm: AlgorithmSpec, hyperparameter: str) -> bool:
    """Whether a hyperparameter is declared as a whole number; the arguments are those of `is_structural`."""
    declared = _declared(name, algorithm, hyperparameter)
    if declared is None:
        return hyperparameter == COUNT
    return isinstance(declared.default, int) and not isinstance(declared.default, bool)


def is_structural(name: str, algorithm: AlgorithmSpec, hyperparameter: str) -> bool:
    """Whether a hyperparameter is structural: it shapes the networks, so a child cannot change it.

    Args:
        name: Name of the algorithm.
        algorithm: Its specification, with the declaration of a user-defined algorithm.
        hyperparameter: Name of the hyperparameter; those of the environment are all structural.
    """
    declared = _declared(name, algorithm, hyperparameter)
    return hyperparameter.startswith(PREFIX) if declared is None else declared.structural


def _declared(name: str, algorithm: AlgorithmSpec, hyperparameter: str) -> catalog.Hyperparameter | None:
    entry = entry_of(name, algorithm)
    return entry.hyperparameters.get(hyperparameter) if entry else None


def _space_of(spec: HyperparameterSpec, *, whole: bool) -> Space | None:
    if spec.choices:
        return Choices(tuple(plain(choice) for choice in spec.choices))
    if spec.HasField("low"):
        return Range(
            spec.low,
            spec.high,
            logarithmic=spec.scale == SCALE_LOG,
            whole=whole,
            reverse=spec.scale == SCALE_REVERSE_LOG,
            zero_probability=spec.zero_probability,
        )
    return None


def plain(value: struct_pb2.Value) -> Value:
    """Converts a protobuf value to its JSON form."""
    kind = value.WhichOneof("kind")
    # Three to six times faster than json_format; each table of statistics needs thousands.
    if kind == "number_value" and math.isfinite(value.number_value):
        return value.number_value
    if kind in ("string_value", "bool_value"):
        return cast(Value, getattr(value, kind))
    return cast(Value, json_format.MessageToDict(value))
