"""Implements the strategy `truncation`: the worst of a population continue from its best, with perturbed
hyperparameters.

Jaderberg et al., "Population Based Training of Neural Networks", arXiv 1711.09846, section 4.1.1: exploit by truncation
selection (ranked by score, an agent in the bottom 20 % copies weights and hyperparameters of one drawn from the top
20 %); explore by perturbing every hyperparameter by a factor of 0.8 or 1.2, or resampling it from its prior with
probability 0.25. All other agents continue unchanged.

Here ranks are among the seats of one algorithm, and both shares are rounded up. An agent is not replaced by one whose
lead is within the standard error of the difference (leaderboard.evolution.comparison), because a small population
cannot afford to lose good members by chance.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from leaderboard.evolution.comparison import leads, ranked, share_of
from leaderboard.evolution.mutation import vary
from leaderboard.evolution.populations.population import Selection, newest_of, propose_for_seat, standing_of
from leaderboard.evolution.populations.seats import Seat
from leaderboard.evolution.space import Space, Value, movable_spaces, scaled
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import named
from leaderboard.seeding import draw_one, happens
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def select(own: Candidate, others: Sequence[Seat], situation: Situation, random: Random) -> Selection:
    """Replaces one of the worst by one of the best with a significant lead."""
    evolution = situation.spec.evolution
    members = ranked([own, *newest_of(others)])
    standing = standing_of(own, members)
    worst = members[len(members) - share_of(len(members), evolution.replaced_share) :]
    if own not in worst:
        return Selection(own, explores=False, reason=f"{standing}, continues")
    donors = members[: share_of(len(members), evolution.donor_share)]
    ahead = [donor for donor in donors if leads(donor, own)]
    if not ahead:
        reason = f"{standing}, but no donor leads it by more than the error; continues"
        return Selection(own, explores=False, reason=reason)
    donor = draw_one(random, ahead)
    return Selection(donor, explores=True, reason=f"{standing}, replaced by {named(donor)}")


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Perturbs or resamples the parent's hyperparameters."""
    evolution = situation.spec.evolution

    def perturb(value: Value, space: Space) -> Value:
        share = evolution.perturbation if happens(random, 0.5) else -evolution.perturbation
        return scaled(space, value, 1 + share, random)

    spaces = movable_spaces(parent.algorithm, situation.spec.algorithms[parent.algorithm])
    return vary(situation.values_of(parent), spaces, evolution, perturb, random)


propose = partial(propose_for_seat, select=select, explore=explore)
"""The strategy."""
