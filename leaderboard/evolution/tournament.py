"""Owns the strategy `tournament`: the best of a few candidates drawn at random becomes the parent of the next agent.

Tournament selection as in Goldberg and Deb, "A Comparative Analysis of Selection Schemes Used in Genetic Algorithms",
1991: the size of the tournament sets the selection pressure, and only ranks matter, so that scores need no scaling.
"""

from random import Random

from leaderboard.board import Board, named, rank_key
from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.randomness import draw_distinct, happens
from leaderboard.evolution.space import plain, spaces_of
from leaderboard.evolution.strategy import Child, Fresh, Situation


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Answers with a fresh agent where there must be one or chance wants one, else with a child."""
    if reason := _why_fresh(situation, random):
        return Fresh(reason)
    parents = eligible(situation)
    if not parents:
        return Fresh("no candidate on the board may have another child now")
    drawn = draw_distinct(random, parents, situation.spec.evolution.tournament_size)
    parent = min(drawn, key=rank_key)
    agent = situation.agents[parent.agent_id]
    inherited = {name: plain(value) for name, value in agent.hyperparameters.fields.items()}
    spaces = spaces_of(agent.algorithm, situation.spec.algorithms[agent.algorithm])
    values = mutate(agent.algorithm, inherited, spaces, situation.spec.evolution, random)
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    return Child(parent, values, f"best of {len(drawn)} drawn: {named(parent)}; {changes}")


def eligible(situation: Situation) -> Board:
    """The candidates that may be parents: a parent has a bounded number of unfinished children."""
    most = situation.spec.evolution.maximum_unfinished_children
    return tuple(other for other in situation.board if situation.unfinished_children.get(other.agent_id, 0) < most)


def _why_fresh(situation: Situation, random: Random) -> str:
    """Why the agent is fresh although there may be parents; empty if it need not be."""
    evolution = situation.spec.evolution
    if situation.number < evolution.initial_agents:
        return f"one of the first {evolution.initial_agents}"
    turn = turn_of(situation.spec, situation.number)
    if turn.first:
        return f"the first turn of {turn.algorithm}"
    if happens(random, evolution.fresh_probability):
        return f"by chance ({evolution.fresh_probability:g}) although there are parents"
    return ""
