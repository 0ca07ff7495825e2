"""Draws the hyperparameters of a fork: those of its parent, some of them moved by a normal step on their scale."""

import math
from collections.abc import Mapping
from random import Random
from typing import cast

from leaderboard.evolution.space import Range, Space, Value, is_structural
from leaderboard.seeding import draw_one, happens
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

MOVED_PROBABILITY = 0.5
"""Probability that a fork with other hyperparameters moves a given one of them; at least one is moved."""


def fork_values(
    algorithm: str, parent: Mapping[str, Value], spaces: Mapping[str, Space], evolution: EvolutionSpec, random: Random
) -> dict[str, Value]:
    """Returns the hyperparameters of a fork.

    With `unchanged_probability` they are those of the parent, so that the fork differs by its seed only. Otherwise each
    searched one that does not shape the networks is moved with probability 1/2, and at least one of them.

    Args:
        algorithm: Name of the algorithm.
        parent: Every hyperparameter of the parent.
        spaces: Spaces of the searched hyperparameters.
        evolution: Resolved settings.
        random: Random stream of the fork.
    """
    values = dict(parent)
    movable = sorted(name for name in spaces if not is_structural(algorithm, name))
    if not movable or happens(random, evolution.unchanged_probability):
        return values
    moved = [name for name in movable if happens(random, MOVED_PROBABILITY)] or [draw_one(random, movable)]
    for name in moved:
        values[name] = step(spaces[name], values[name], evolution.mutation_step, random)
    return values


def step(space: Space, value: Value, deviation: float, random: Random) -> Value:
    """Moves a value by a normal step of this standard deviation, as a share of its range, reflected at the ends.

    A whole number moves by at least 1. A choice moves to a neighbor.
    """
    if not isinstance(space, Range):
        return space.next(value, random, upward=happens(random, 0.5))
    number = cast(float, value)
    drawn = deviation * _normal(random)
    moved = space.at(_reflected(space.position(number) + drawn))
    if space.whole and moved == number:
        moved = space.at(space.position(number + 1 if drawn > 0 else number - 1))
        moved = number - 1 if moved == number and drawn > 0 else number + 1 if moved == number else moved
    return moved


def _reflected(position: float) -> float:
    """Returns a position from 0 to 1, reflected at the ends as often as necessary."""
    position %= 2
    return 2 - position if position > 1 else position


def _normal(random: Random) -> float:
    """Returns a standard normal number (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958)."""
    radius = math.sqrt(-2 * math.log(1 - random.random()))
    return radius * math.cos(2 * math.pi * random.random())
