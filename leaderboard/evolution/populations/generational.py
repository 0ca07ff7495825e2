"""Implements the strategy `generational`: every generation restarts from the best of the earlier ones.

Li, Liu, Zheng, Wang, Walid and Guo, "FinRL-Podracer: High Performance and Scalable Deep Reinforcement Learning for
Quantitative Finance", ICAIF 2021, arXiv 2111.05188, section 4: a population trains for a period, is ranked, and the
checkpoint files of the best are given to the whole next population. The generation of an agent is its number divided by
`population_size`, and its seat is the remainder. Its algorithm is that of the seat's turn, so every generation has the
ratios of the specification. It restarts from the best of its own algorithm, because the files of another do not fit.
The first child of a parent in a generation keeps the parent's hyperparameters; the others mutate.

A generation begins when its first agent is requested, and agents of the previous one may still train then. They are not
waited for, and count for the next generation. With `synchronous = true` a generation waits for all earlier agents if it
is a round: set `population_size = pool.maximum_pods`.
"""

from random import Random

from leaderboard.evolution.comparison import ranked
from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.space import movable_spaces
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, named
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Returns a child of the best of the earlier generations; a fresh agent if there is none."""
    size = situation.spec.evolution.population_size
    generation, seat = divmod(situation.number, size)
    algorithm = turn_of(situation.spec, seat, situation.left).algorithm
    if not generation:
        return Fresh("of the first generation", algorithm, seat)
    parents = candidates_before(situation, generation * size, algorithm)
    if not parents:
        return Fresh(f"of generation {generation}, before which no agent of {algorithm} was scored", algorithm, seat)
    parent, inherited = parents[0], situation.values_of(parents[0])
    values = inherited
    if not _is_first_child(situation, generation * size, parent):
        spaces = movable_spaces(algorithm, situation.spec.algorithms[algorithm])
        values = mutate(inherited, spaces, situation.spec.evolution, random)
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    reason = f"generation {generation} restarts from the best {algorithm}, {named(parent)}; {changes}"
    return Child(parent, values, reason, seat)


def candidates_before(situation: Situation, number: int, algorithm: str) -> Board:
    """Returns candidates of agents below a number, by rank: those on the board, and the last of each recent agent."""
    known = {one.candidate_id: one for one in (*situation.board, *situation.history.last.values())}
    return ranked([one for one in known.values() if one.agent_number < number and one.algorithm == algorithm])


def _is_first_child(situation: Situation, begin: int, parent: Candidate) -> bool:
    """Whether no other agent of the generation has this parent."""
    generation = (one for one in situation.history.agents if begin <= one.number < situation.number)
    return not any(parent.agent_id in one.parent_agent_ids for one in generation)
