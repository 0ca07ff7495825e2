"""Who comes next: the evolution strategies by the names that a specification uses. Pure, all of it.

agents.py            how an agent is made of what a strategy answers
strategy.py          what a strategy is shown, and what it answers
tournament.py        the best of a few becomes the parent
random_search.py     the control
mutation.py          how a child's hyperparameters differ from its parent's
fresh.py             which algorithm and which values a fresh agent has
space.py             where a hyperparameter may lie, and how it moves there
randomness.py        where all randomness comes from
"""

from collections.abc import Mapping

from leaderboard.evolution import random_search, tournament
from leaderboard.evolution.strategy import Strategy

STRATEGIES: Mapping[str, Strategy] = {"tournament": tournament.propose, "random-search": random_search.propose}
