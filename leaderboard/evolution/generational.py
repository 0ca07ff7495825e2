"""Owns the strategy `generational`: every generation restarts from the best of the ones before it.

Li, Liu, Zheng, Wang, Walid and Guo, "FinRL-Podracer: High Performance and Scalable Deep Reinforcement Learning for
Quantitative Finance", ICAIF 2021, arXiv 2111.05188, section 4: a population trains for a period, is ranked, and the
training files of the best are handed to the whole next population. An agent's generation is its number divided by
`population_size`; its seat is the remainder, its algorithm the one whose turn the seat is, so that every generation
has the ratio of the specification. It restarts from the best of its own algorithm: files of another do not fit. The
first of a generation that a parent has goes on with its hyperparameters; the others mutate.

A generation begins when its first agent is asked for, and agents of the one before it may still train then: who is late
is not waited for, and counts for the next. With `synchronous = true` nobody is late: then let the generation be a
round, `population_size = pool.maximum_pods`.
"""

from random import Random

from leaderboard.evolution.comparison import ranked
from leaderboard.evolution.fresh import turn_of
from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.space import spaces_of
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import Board, named
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Answers with a child of the best of the generations before; with a fresh agent if there is none."""
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
        spaces = spaces_of(algorithm, situation.spec.algorithms[algorithm])
        values = mutate(algorithm, inherited, spaces, situation.spec.evolution, random)
    changes = describe_changes(inherited, values) or "hyperparameters unchanged"
    reason = f"generation {generation} restarts from the best {algorithm}, {named(parent)}; {changes}"
    return Child(parent, values, reason, seat)


def candidates_before(situation: Situation, number: int, algorithm: str) -> Board:
    """Candidates of agents below a number, by rank: those of the board, and the last of each agent in the history."""
    known = {one.candidate_id: one for one in (*situation.board, *situation.history.last.values())}
    return ranked([one for one in known.values() if one.agent_number < number and one.algorithm == algorithm])


def _is_first_child(situation: Situation, begin: int, parent: Candidate) -> bool:
    """Whether no other agent of the generation has this parent."""
    generation = (one for one in situation.history.agents if begin <= one.number < situation.number)
    return not any(parent.agent_id in one.parent_agent_ids for one in generation)
