"""Who comes next: the evolution strategies by the names that a specification uses. Pure, all of it.

agents.py            how an agent is made of what a strategy answers
proposals.py         what becomes of a custom generator's answer
strategy.py          what a strategy is shown, and what it answers
history.py           what it may know of the past beside the board
tournament.py        the best of a few becomes the parent
softmax.py           the higher the score, the likelier the parent
population.py        what the strategies with a population have in common
seats.py             the population: who sits where, and whose turn it is
truncation.py        the worst of a population continue from its best
dexpbt.py            the same, if the gap is real and the comparison fair
pb2.py               the same, with hyperparameters that a bandit chooses
gaussian_process.py  what the bandit believes (needs scikit-learn)
generational.py      every generation restarts from the best
random_search.py     the control
allocation.py        which algorithms agents may still have
comparison.py        how noisy scores are compared
mutation.py          how a child's hyperparameters differ from its parent's
fresh.py             which algorithm and which values a fresh agent has
space.py             where a hyperparameter may lie, and how it moves there
randomness.py        where all randomness comes from
"""

from collections.abc import Mapping

from leaderboard.evolution import dexpbt, generational, pb2, random_search, softmax, tournament, truncation
from leaderboard.evolution.strategy import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "tournament": tournament.propose,
    "softmax": softmax.propose,
    "truncation": truncation.propose,
    "dexpbt": dexpbt.propose,
    "pb2": pb2.propose,
    "generational": generational.propose,
    "random-search": random_search.propose,
}

NEEDED: Mapping[str, str] = {"pb2": "sklearn"}
"""By strategy: the module it needs beyond what every leaderboard has; the extra that brings it is named as it is."""
