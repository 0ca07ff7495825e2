"""Draws the hyperparameters of a fork: those of its parent, some of them moved by a normal step on their scale."""

from collections.abc import Mapping
from random import Random

from leaderboard.evolution.space import Space, Value, stepped
from leaderboard.seeding import draw_one, happens
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

MOVED_PROBABILITY = 0.5
"""Probability that a fork with other hyperparameters moves a given one of them; at least one is moved."""


def fork_values(
    parent: Mapping[str, Value], spaces: Mapping[str, Space], evolution: EvolutionSpec, random: Random
) -> dict[str, Value]:
    """Returns the hyperparameters of a fork.

    With `unchanged_probability` they are those of the parent, so that the fork differs by its seed only. Otherwise each
    searched one that does not shape the networks is moved with probability 1/2, and at least one of them.

    Args:
        parent: Every hyperparameter of the parent.
        spaces: Of the hyperparameters that may change in a child (`movable_spaces`).
        evolution: Resolved settings.
        random: Random stream of the fork.
    """
    values = dict(parent)
    movable = sorted(spaces)
    if not movable or happens(random, evolution.unchanged_probability):
        return values
    moved = [name for name in movable if happens(random, MOVED_PROBABILITY)] or [draw_one(random, movable)]
    for name in moved:
        values[name] = stepped(spaces[name], values[name], evolution.mutation_step, random)
    return values
