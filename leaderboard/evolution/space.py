"""Draws and moves values of searched hyperparameters within their ranges and choices.

Draws are uniform: over a linear range, over the logarithm of a logarithmic one, over choices. A perturbation moves up
or down with equal probability, by a factor f >= 1:
    logarithmic range    the value is multiplied or divided by f
    linear range         it moves by the share 1 - 1/f of the range (the share that division by f takes off a number)
    choices              it moves to the neighbor in the order of the specification
A value that would leave a range is reflected at its end (on the scale of the range), and clipped if it then leaves the
other end. With clipping alone, values would stay at the ends, where half of all moves would change nothing. Whole
numbers are rounded and move by at least 1. With f = 1 nothing moves.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import cast

from google.protobuf import json_format, struct_pb2

from leaderboard.seeding import draw_one, happens
from podrace.specification import catalog
from podrace.tournament.v1.tournament_pb2 import SCALE_LOG, AlgorithmSpec, HyperparameterSpec

Value = float | bool | str | list[float]
"""Value of a hyperparameter in JSON; whole numbers are floats."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    logarithmic: bool = False
    """Draws are uniform in the logarithm, moves are factors; `low` is positive."""
    whole: bool = False
    """Only whole numbers."""

    def draw(self, random: Random) -> float:
        """Draws a value."""
        # Whole numbers are drawn from half a unit beyond the ends, so that all are equally likely.
        low, high = (math.ceil(self.low) - 0.5, math.floor(self.high) + 0.5) if self.whole else (self.low, self.high)
        if self.logarithmic:
            drawn = low * math.exp(random.random() * math.log(high / low))
        else:
            drawn = low + random.random() * (high - low)
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
        moved = value * factor if self.logarithmic else value + (factor - 1) * (self.high - self.low)
        return self._settled(value, moved, upward=factor > 1)

    def at(self, position: float) -> float:
        """Returns the value at a position from 0 (the low end) to 1, on the scale of the range."""
        if self.logarithmic:
            value = self.low * math.exp(position * math.log(self.high / self.low))
        else:
            value = self.low + position * (self.high - self.low)
        return self._clipped(round(value) if self.whole else value)

    def position(self, value: float) -> float:
        """Returns the position of a value, from 0 to 1: the inverse of `at`."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def _settled(self, value: float, moved: float, *, upward: bool) -> float:
        """Returns the result of a move: inside the range, and different from the value."""
        moved = self._clipped(self._reflected(moved))
        if self.whole and (moved := self._clipped(round(moved))) == value:
            moved = self._next_whole(value, 1 if upward else -1)
        return moved

    def _moved(self, value: float, factor: float, *, upward: bool) -> float:
        if self.logarithmic:
            return value * factor if upward else value / factor
        step = (1 - 1 / factor) * (self.high - self.low)
        return value + step if upward else value - step

    def _reflected(self, value: float) -> float:
        if self.low <= value <= self.high:
            return value
        end = self.low if value < self.low else self.high
        return end * end / value if self.logarithmic else 2 * end - value

    def _next_whole(self, value: float, direction: int) -> float:
        there = value + direction
        return self._clipped(there if self.low <= there <= self.high else value - direction)

    def _clipped(self, value: float) -> float:
        low, high = (math.ceil(self.low), math.floor(self.high)) if self.whole else (self.low, self.high)
        return float(min(max(value, low), high))


@dataclass(frozen=True)
class Choices:
    """An ordered list of values."""

    values: tuple[Value, ...]

    def draw(self, random: Random) -> Value:
        """Draws a value."""
        return draw_one(random, self.values)

    def perturb(self, value: Value, factor: float, random: Random) -> Value:
        """Moves to a neighbor (at an end, the only one); a value that is not among the choices is drawn again."""
        upward = happens(random, 0.5)
        return value if factor == 1 else self.next(value, random, upward=upward)

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


def spaces_of(name: str, algorithm: AlgorithmSpec) -> dict[str, Space]:
    """Returns the spaces of the searched hyperparameters of an algorithm, in alphabetical order.

    Args:
        name: Name of the algorithm. The catalog declares which of its hyperparameters are whole numbers; JSON does not.
        algorithm: Its resolved specification.
    """
    found = {key: _space_of(spec, whole=is_whole(name, key)) for key, spec in sorted(algorithm.hyperparameters.items())}
    return {key: space for key, space in found.items() if space is not None}


def declared_values(algorithm: AlgorithmSpec) -> dict[str, Value]:
    """Returns every hyperparameter of a resolved algorithm with its value in the specification."""
    return {key: plain(spec.value) for key, spec in sorted(algorithm.hyperparameters.items())}


def is_whole(algorithm: str, hyperparameter: str) -> bool:
    """Whether the catalog declares a hyperparameter as a whole number."""
    declared = _declared(algorithm, hyperparameter)
    return declared is not None and isinstance(declared.default, int) and not isinstance(declared.default, bool)


def is_structural(algorithm: str, hyperparameter: str) -> bool:
    """Whether the catalog declares a hyperparameter as structural: it shapes the networks, so a child cannot change
    it.
    """
    declared = _declared(algorithm, hyperparameter)
    return declared is not None and declared.structural


def _declared(algorithm: str, hyperparameter: str) -> catalog.Hyperparameter | None:
    entry = catalog.ALGORITHMS.get(algorithm)
    return entry.hyperparameters.get(hyperparameter) if entry else None


def _space_of(spec: HyperparameterSpec, *, whole: bool) -> Space | None:
    if spec.choices:
        return Choices(tuple(plain(choice) for choice in spec.choices))
    if spec.HasField("low"):
        return Range(spec.low, spec.high, logarithmic=spec.scale == SCALE_LOG, whole=whole)
    return None


def plain(value: struct_pb2.Value) -> Value:
    """Converts a protobuf value to its JSON form."""
    return cast(Value, json_format.MessageToDict(value))
