"""Implements the strategy `dexpbt`: as `truncation`, but an agent is replaced only after a fair, significant
comparison.

Petrenko, Allshire, State, Handa and Makoviychuk, "DexPBT: Scaling up Dexterous Manipulation for Hand-Arm Systems with
Population Based Training", RSS 2023, arXiv 2305.12127, section IV, with the numbers of its implementation in
IsaacGymEnvs. When an agent has ended, it is compared with the newest checkpoint of every other seat that has no more
experience, so that an agent that started late or trains slowly is not replaced for that reason.
    1. Nothing changes until more than half of the population, and at least three, can be compared.
    2. Nothing changes for an agent that is not among the worst 12.5 % (rounded up).
    3. A donor is drawn from the best 30 % (rounded up). It replaces the agent if it leads by more than 0.5 standard
       deviations of the scores, by more than 5 % of its own score, and by more than the standard error of the
       difference (the last condition is not in the paper). The deviation leaves out the worst fifth, because a few
       failed agents would make it too large.
    4. Otherwise the agent keeps its checkpoint files. In both cases its hyperparameters are the donor's or its own,
       each with probability 0.5, and mutate: each with probability 0.15, multiplied or divided by a factor between 1.1
       and 1.5.
Experience is measured in environment steps along the lineage.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from statistics import pstdev

from leaderboard.evolution.comparison import ranked, share_of
from leaderboard.evolution.mutation import vary
from leaderboard.evolution.populations.population import Selection, propose_for_seat, standing_of, unstructural
from leaderboard.evolution.populations.seats import Seat
from leaderboard.evolution.space import Space, Value, movable_spaces, perturbed
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import Board, named
from leaderboard.ranking.paired import difference, ranked_score
from leaderboard.seeding import draw_one, happens
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

LEAST_PEERS = 3
"""Candidates that are compared, the agent's own included."""
OUTLIERS = 0.2
"""Share of the lowest scores, rounded down, that the deviation leaves out."""


def select(own: Candidate, others: Sequence[Seat], situation: Situation, random: Random) -> Selection:
    """Replaces one of the worst by one of the best, if its lead is large enough."""
    evolution = situation.spec.evolution
    peers = [seat.newest_within(own.environment_steps) for seat in others]
    members = ranked([own, *(peer for peer in peers if peer is not None)])
    standing = standing_of(own, members)
    if len(members) < LEAST_PEERS or 2 * len(members) <= len(others) + 1:
        return Selection(
            own, explores=False, reason=f"{standing} with no more experience, too few to compare; continues"
        )
    worst = members[len(members) - share_of(len(members), evolution.replaced_share) :]
    if own not in worst:
        return Selection(own, explores=False, reason=f"{standing}, continues")
    donor = draw_one(random, members[: share_of(len(members), evolution.donor_share)])
    if shortfall := why_not_enough(donor, own, members, evolution):
        return Selection(own, explores=True, reason=f"{standing}, and {named(donor)} {shortfall}; continues mutated")
    return Selection(donor, explores=True, reason=f"{standing}, replaced by {named(donor)}")


def why_not_enough(donor: Candidate, own: Candidate, members: Board, evolution: EvolutionSpec) -> str:
    """Returns which condition the lead of a donor fails; empty if it satisfies all."""
    scores = sorted(ranked_score(candidate) for candidate in members)
    deviation = pstdev(scores[math.floor(OUTLIERS * len(scores)) :])
    lead = difference(donor, own)
    needed = {
        f"{evolution.lead_deviations:g} deviations": evolution.lead_deviations * deviation,
        f"{evolution.lead_share:.3g} of its score": evolution.lead_share * abs(ranked_score(donor)),
        "the error": lead.error,
    }
    for name, least in needed.items():
        if lead.value <= least:
            return f"leads by no more than {name} ({least:.3g})"
    return ""


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Mutates the parent's hyperparameters or the seat's own. Structural ones are always the parent's."""
    evolution = situation.spec.evolution
    source = situation.values_of(parent)
    keeps_own = happens(random, 0.5)
    if keeps_own and own_values:
        source |= unstructural(parent.algorithm, situation, own_values)

    def perturb(value: Value, space: Space) -> Value:
        low, high = evolution.mutation_factor_low, evolution.mutation_factor
        return perturbed(space, value, low + random.random() * (high - low), random)

    spaces = movable_spaces(parent.algorithm, situation.spec.algorithms[parent.algorithm])
    return vary(source, spaces, evolution, perturb, random)


propose = partial(propose_for_seat, select=select, explore=explore)
"""The strategy."""
