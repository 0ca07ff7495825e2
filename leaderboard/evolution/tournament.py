"""Implements the strategy `tournament`: the best of a few candidates drawn at random becomes the parent of the next
agent.

Tournament selection as in Goldberg and Deb, "A Comparative Analysis of Selection Schemes Used in Genetic Algorithms",
1991: the number of drawn candidates sets the selection pressure, and only ranks matter, so scores need no scaling.
"""

from collections.abc import Callable
from random import Random

from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.space import movable_spaces
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, named, rank_key
from leaderboard.seeding import draw_distinct, happens
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

Choice = tuple[Candidate, str]
"""A parent, and how it was chosen, in one line."""


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Returns a fresh agent if one is required or drawn by chance, else a child."""

    def best_drawn(parents: Board) -> Choice:
        drawn = draw_distinct(random, parents, situation.spec.evolution.tournament_size)
        return min(drawn, key=rank_key), f"best of {len(drawn)} drawn"

    return descend(situation, best_drawn, random)


def descend(situation: Situation, choose: Callable[[Board], Choice], random: Random) -> Fresh | Child:
    """Returns a fresh agent if one is required or drawn by chance, else a mutated child of a candidate on the board.

    Args:
        situation: Input of the strategy.
        choose: Chooses a parent from the candidates that may have another child; they are given by rank, at least one.
        random: Random stream of the agent.
    """
    if reason := _why_fresh(situation, random):
        return Fresh(reason)
    parents = tuple(filter(situation.may_have_another_child, situation.possible_parents))
    if not parents:
        return Fresh("no candidate on the board may have another child now")
    parent, how = choose(parents)
    inherited = situation.values_of(parent)
    spaces = movable_spaces(parent.algorithm, situation.spec.algorithms[parent.algorithm])
    values = mutate(inherited, spaces, situation.spec.evolution, random)
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    return Child(parent, values, f"{how}: {named(parent)}; {changes}")


def _why_fresh(situation: Situation, random: Random) -> str:
    """Returns why the agent must be fresh even if there are parents; empty if it need not be."""
    evolution = situation.spec.evolution
    if situation.number < evolution.initial_agents:
        return f"one of the first {evolution.initial_agents}"
    turn = situation.turn
    if turn.first:
        return f"the first turn of {turn.algorithm}"
    if turn.start(situation.spec) is not None:
        return f"starts[{turn.ordinal}] of {turn.algorithm} is next"
    if happens(random, evolution.fresh_probability):
        return f"by chance ({evolution.fresh_probability:g}) although there are parents"
    return ""
