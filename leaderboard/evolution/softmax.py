"""Implements the strategy `softmax`: a candidate becomes the parent with a probability that grows with its score.

p_i is proportional to exp(z_i / temperature), where z_i is the score minus the mean of the scores, divided by their
deviation: the rule of ElegantRL's leaderboard (Liu et al., "ElegantRL-Podracer", arXiv 2112.05923), with Boltzmann's
temperature added (de la Maza and Tidor, "An Analysis of Selection Procedures", 1993). The result does not depend on the
scale of the scores, but, unlike ranks, it depends on their differences.

The deviation is the standard deviation of the scores, or the root mean square of their standard errors if that is
larger, so that differences within the noise are not amplified.
"""

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean, pstdev

from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.evolution.tournament import Choice, descend
from leaderboard.ranking.board import Board
from leaderboard.ranking.paired import ranked_error, ranked_score


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Returns a fresh agent if one is required or drawn by chance, else a child."""

    def drawn_by_score(parents: Board) -> Choice:
        probabilities = probabilities_of(parents, situation.spec.evolution.temperature)
        position = draw_position(probabilities, random)
        return parents[position], f"drawn with probability {probabilities[position]:.2g}"

    return descend(situation, drawn_by_score, random)


def probabilities_of(parents: Board, temperature: float) -> list[float]:
    """Returns the probability of each parent, in the given order."""
    scores = [ranked_score(candidate) for candidate in parents]
    noise = math.sqrt(fmean(ranked_error(candidate) ** 2 for candidate in parents))
    deviation = max(pstdev(scores), noise) or 1.0
    highest = max(scores)
    # Relative to the highest score instead of the mean, which cancels out, so that exp does not overflow.
    weights = [math.exp((score - highest) / deviation / temperature) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def draw_position(probabilities: Sequence[float], random: Random) -> int:
    """Draws a position; the last one if the probabilities sum to slightly less than 1."""
    left = random.random()
    for position, probability in enumerate(probabilities):
        left -= probability
        if left < 0:
            return position
    return len(probabilities) - 1
