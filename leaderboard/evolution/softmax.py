"""Owns the strategy `softmax`: a candidate becomes the parent with a probability that grows with its score.

p_i is proportional to exp(z_i / temperature), where z_i is the score minus the mean of the scores, divided by their
deviation: the rule of ElegantRL's leaderboard (Liu et al., "ElegantRL-Podracer", arXiv 2112.05923), with Boltzmann's
temperature added (de la Maza and Tidor, "An Analysis of Selection Procedures", 1993). Scores need no scale of their own
then, but a lead counts for more than its rank.

The deviation is the population's, or the root mean square of the standard errors if that is more: scores that differ by
no more than their noise are not blown up to differences of one.
"""

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean, pstdev

from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.evolution.tournament import Choice, descend
from leaderboard.ranking.board import Board


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Answers with a fresh agent where there must be one or chance wants one, else with a child."""

    def drawn_by_score(parents: Board) -> Choice:
        probabilities = probabilities_of(parents, situation.spec.evolution.temperature)
        position = draw_position(probabilities, random)
        return parents[position], f"drawn with probability {probabilities[position]:.2g}"

    return descend(situation, drawn_by_score, random)


def probabilities_of(parents: Board, temperature: float) -> list[float]:
    """How likely each is, in the order given; all equally if their scores are equal."""
    scores = [candidate.score for candidate in parents]
    noise = math.sqrt(fmean(candidate.standard_error**2 for candidate in parents))
    deviation = max(pstdev(scores), noise) or 1.0
    highest = max(scores)
    # Relative to the highest, so that nothing overflows; the mean cancels out.
    weights = [math.exp((score - highest) / deviation / temperature) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def draw_position(probabilities: Sequence[float], random: Random) -> int:
    """Draws a position; that of the last if rounding leaves a gap at the end."""
    left = random.random()
    for position, probability in enumerate(probabilities):
        left -= probability
        if left < 0:
            return position
    return len(probabilities) - 1
