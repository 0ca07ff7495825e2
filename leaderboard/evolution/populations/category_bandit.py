"""Computes the probabilities with which `pb2` draws a choice: a time-varying adversarial bandit (TV.EXP3.M). Pure.

Parker-Holder, Nguyen, Desai and Roberts, "Tuning Mixed Input Hyperparameters on the Fly for Efficient Population Based
AutoRL", NeurIPS 2021, arXiv 2106.15883, algorithm 2. It is EXP3.M (Uchiya, Nakamura and Kudo, "Algorithms for
Adversarial Bandit Problems with Multiple Plays", ALT 2010) with the weight sharing of EXP3.S (Auer, Cesa-Bianchi,
Freund and Schapire, "The Nonstochastic Multiarmed Bandit Problem", SIAM Journal on Computing 32, 2002). For C
categories, B plays in each round, T rounds and weights w, which are 1 at the beginning:
    exploration     gamma = sqrt(C ln(C / B) / ((e - 1) B T)), at most 1, if B < C; else 0.2, as in the authors' code
    cap             if B < C, every weight above v is v, where v is the share (1 / B - gamma / C) / (1 - gamma) of the
                    sum of the capped weights; so no category is expected to have more than one play in a round
    probability     p(c) = (1 - gamma) w(c) / sum(w) + gamma / C, of the capped weights
    estimate        g(c) = sum of the rewards of the plays of c / (B p(c))
    next weight     w(c) exp(B gamma g(c) / C), or w(c) if it was capped, plus (e / (C T)) sum(w)
The last term is what makes the bandit time-varying: a category whose weight has become small can recover within a few
rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

EXPLORATION = 0.2
"""Exploration where there are at least as many plays in a round as categories."""
DIGITS = 9
"""Probabilities are rounded, because the last digits of an exponential may differ between machines."""


@dataclass(frozen=True)
class Play:
    """A category that an agent trained with, and what it gained."""

    category: int
    """From 0."""
    reward: float
    """From 0 to 1."""


@dataclass(frozen=True)
class Bandit:
    """The bandit of one hyperparameter with choices."""

    categories: int
    """Number of choices."""
    plays: int
    """Number of plays in a round, at least 1."""
    rounds: int
    """Number of rounds over which it plays, at least 1."""

    @property
    def exploration(self) -> float:
        """Share of the probability that is the same for all categories."""
        if self.plays >= self.categories:
            return EXPLORATION
        scale = (math.e - 1) * self.plays * self.rounds
        return min(1.0, math.sqrt(self.categories * math.log(self.categories / self.plays) / scale))

    def probabilities(self, rounds: Sequence[Sequence[Play]]) -> list[float]:
        """Returns the probability of each category after some rounds, the earliest first."""
        weights = [1.0] * self.categories
        for plays in rounds:
            weights = self.updated(weights, plays)
        return [round(probability, DIGITS) for probability in self._distribution(self._capped(weights)[0])]

    def updated(self, weights: Sequence[float], plays: Sequence[Play]) -> list[float]:
        """Returns the weights after a round, up to a common factor."""
        capped, at_cap = self._capped(weights)
        probabilities = self._distribution(capped)
        # B cancels: the estimate divides by it, and the exponent multiplies by it.
        exponents = [0.0] * self.categories
        for play in plays:
            if play.category not in at_cap:
                scale = probabilities[play.category] * self.categories
                exponents[play.category] += self.exploration * play.reward / scale
        # Only ratios of weights matter. With the largest exponent subtracted, no weight overflows.
        largest = max(exponents)
        shared = math.e / (self.categories * self.rounds) * sum(weights) * math.exp(-largest)
        grown = [
            weight * math.exp(exponent - largest) + shared for weight, exponent in zip(weights, exponents, strict=True)
        ]
        total = sum(grown)
        return [weight / total for weight in grown]

    def _distribution(self, weights: Sequence[float]) -> list[float]:
        total = sum(weights)
        equal = self.exploration / self.categories
        return [(1 - self.exploration) * weight / total + equal for weight in weights]

    def _capped(self, weights: Sequence[float]) -> tuple[list[float], frozenset[int]]:
        """Returns the weights with those above the cap replaced by it, and the categories that have it."""
        if self.plays >= self.categories or self.exploration >= 1:
            return list(weights), frozenset()
        share = (1 / self.plays - self.exploration / self.categories) / (1 - self.exploration)
        order = sorted(range(self.categories), key=lambda category: (-weights[category], category))
        count, cap = 0, share * sum(weights)
        while count < self.plays and weights[order[count]] >= cap:
            count += 1
            # With `count` weights at the cap v and the sum R of the others: v = share (count v + R).
            cap = share * sum(weights[category] for category in order[count:]) / (1 - count * share)
        at_cap = frozenset(order[:count])
        return [cap if category in at_cap else weight for category, weight in enumerate(weights)], at_cap


def draw_category(random: Random, probabilities: Sequence[float]) -> int:
    """Draws a category with these probabilities; one random number is used."""
    point = random.random() * sum(probabilities)
    for category, probability in enumerate(probabilities):
        point -= probability
        if point < 0:
            return category
    return len(probabilities) - 1
