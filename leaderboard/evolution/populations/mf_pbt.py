"""Implements the strategy `mf-pbt`: sub-populations that evolve at different frequencies and exchange agents.

Doulazmi, Lehuger, Toromanoff et al., "Multiple-Frequencies Population-Based Training", RLC 2025, arXiv 2506.03225, with
the numbers of the published implementation (github.com/WaelDLZ/MF-PBT). Selection at short intervals prefers what
improves fast, such as a falling learning rate, even if it ends lower. A sub-population that evolves rarely judges the
same agents by what they reach later.

Seats of one algorithm and one sub-population are ranked when a seat is due, and divided into four brackets:
    winners (the best quarter)      continue
    survivors                       continue
    open (the quarter above the     the k-th of them is replaced by the k-th best agent of all other sub-populations, if
    losers)                         that one is better. From one that evolves less often it takes weights and
                                    hyperparameters; from one that evolves more often only weights, with the
                                    hyperparameters of the best of its own sub-population
    losers (the worst quarter)      the k-th of them restarts from the k-th winner, with every hyperparameter multiplied
                                    or divided by 1.25
So weights spread in both directions, but the hyperparameters of a greedy sub-population never reach a patient one.

Differences from the paper:
- Agents do not wait for each other. A seat is due at its first turn after its sub-population's period, which is counted
  in rounds of `population_size` agents; the others are ranked by their newest checkpoints at that moment.
- Periods are powers of `frequency_factor` (1, 3, 9, 27) instead of 1, 10, 25 and 50 of 1,000 rounds: a seat may have no
  more than six turns.
- Every sub-population has at least four seats, so that it has all brackets. A population of fewer than 16 has fewer
  sub-populations than 4, a population of fewer than 8 has one.
- The first seats, which have the values of the specification and known good ones, are in the sub-population that
  evolves least often, so a slow start does not lose them.
- No agent is replaced by one whose lead is within the standard error of the difference, as in `truncation`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from leaderboard.evolution.comparison import leads, ranked, share_of
from leaderboard.evolution.mutation import mutate
from leaderboard.evolution.populations.population import Selection, newest_of, propose_for_seat, standing_of
from leaderboard.evolution.populations.seats import Seat
from leaderboard.evolution.space import Value, movable_spaces
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import named
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

FEWEST_SEATS = 4
"""Seats of a sub-population: one for each bracket."""


def select(own: Candidate, others: Sequence[Seat], situation: Situation, random: Random) -> Selection:
    """Lets a seat continue until it is due, and then evolve within its sub-population."""
    evolution = situation.spec.evolution
    group = group_of(situation.agent_of(own).seat, evolution)
    period = period_of(group, evolution)
    if period > 1 and not is_due(own.agent_number, situation.number, period * evolution.population_size):
        return Selection(own, explores=False, reason=f"sub-population {group} evolves every {period} rounds, continues")
    inside = [seat for seat in others if group_of(seat.number, evolution) == group]
    outside = [seat for seat in others if group_of(seat.number, evolution) != group]
    members = ranked([own, *newest_of(inside)])
    standing = f"{standing_of(own, members)} in sub-population {group}"
    bracket = share_of(len(members), evolution.replaced_share)
    first_loser = len(members) - bracket
    first_open, place = max(bracket, first_loser - bracket), members.index(own)
    if place >= first_loser:
        winner = members[place - first_loser]
        if leads(winner, own):
            return Selection(winner, explores=True, reason=f"{standing}, replaced by {named(winner)}")
    elif place >= first_open:
        migrants = ranked(newest_of(outside))[place - first_open :]
        if migrants and leads(migrants[0], own):
            return _migration(migrants[0], members[0], group, standing, situation)
    return Selection(own, explores=False, reason=f"{standing}, continues")


def _migration(migrant: Candidate, best: Candidate, group: int, standing: str, situation: Situation) -> Selection:
    """Returns what a seat takes from an agent of another sub-population."""
    origin = group_of(situation.agent_of(migrant).seat, situation.spec.evolution)
    reason = f"{standing}, replaced by {named(migrant)} of sub-population {origin}"
    if origin > group:
        return Selection(migrant, explores=False, reason=reason)
    return Selection(
        migrant, explores=False, reason=f"{reason} with the hyperparameters of {named(best)}", values_of=best
    )


def group_of(seat: int, evolution: EvolutionSpec) -> int:
    """Returns the sub-population of a seat. Number 0 evolves most often; the first seats have the highest number."""
    size = evolution.population_size
    groups = max(1, min(evolution.subpopulations, size // FEWEST_SEATS))
    return groups - 1 - seat % size * groups // size


def period_of(group: int, evolution: EvolutionSpec) -> int:
    """Returns the number of rounds from one evolution of a sub-population to the next."""
    period: int = evolution.frequency_factor**group
    return period


def is_due(last: int, number: int, period: int) -> bool:
    """Whether a seat evolves now.

    Periods are counted by the numbers of agents, so that all seats of a sub-population evolve at about the same time,
    whatever part of their history is known.

    Args:
        last: Number of the last agent of the seat.
        number: Number of the new agent.
        period: From one evolution to the next, in agents of the whole population.
    """
    return number // period > last // period


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Multiplies or divides the parent's hyperparameters by `mutation_factor`."""
    spaces = movable_spaces(parent.algorithm, situation.spec.algorithms[parent.algorithm])
    return mutate(situation.values_of(parent), spaces, situation.spec.evolution, random)


propose = partial(propose_for_seat, select=select, explore=explore)
"""The strategy."""
