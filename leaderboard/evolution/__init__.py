"""Decides what the next agent of a tournament is: the evolution strategies, by their names in a specification. Pure.

agents.py            makes an agent from the answer of a strategy or a generator plugin
proposals.py         checks the answer of a generator plugin
strategy.py          interface of a strategy: its input and its answer
history.py           the latest agents and their scores, in addition to the board
trials.py            the whole log, folded into chains of agents that continue each other
incumbent/           strategy: the leading trial continues, and all others challenge it
asha.py              strategy: fresh trials climb rungs, from each of which the best are promoted
bohb.py              strategy: the same, with values that a model proposes
parzen.py            model of bohb: densities of good and bad hyperparameters
tournament.py        strategy: the best of a few candidates drawn at random becomes the parent
softmax.py           strategy: candidates become parents with a probability that grows with the score
populations/         strategies with a population of seats:
  population.py        shared by them
  seats.py             the seats, and which one the next agent takes
  truncation.py        the worst of a population continue from its best
  dexpbt.py            the same, if the difference is significant and the comparison fair
  mf_pbt.py            the same in sub-populations, which evolve at different frequencies and exchange agents
  fire_pbt.py          the same, partly by how fast networks improve, which evaluators measure
  improvement_curves.py  comparison of two runs from the same performance on, for fire_pbt.py
  pb2.py               the same, with hyperparameters that bandits choose
  gaussian_process.py  model of the bandit that chooses numbers (needs scikit-learn)
  category_bandit.py   the bandits that choose among choices
  gpbt.py              the worse of a pair continues from the better and learns from its hyperparameters
  generational.py      every generation restarts from the best
random_search.py     strategy: every agent is fresh; the control
rungs.py             rungs, and which trials are promoted
ladders.py           the order of the trials on each rung
allocation.py        which algorithms new agents may have
comparison.py        comparison of noisy scores
mutation.py          hyperparameters of a child
crossover.py         siblings, whose average a child may start from
fresh.py             algorithm and hyperparameters of a fresh agent
space.py             ranges and choices of searched hyperparameters
ancestor.py          starts from an agent of another tournament
"""

from collections.abc import Mapping

from leaderboard.evolution import asha, bohb, random_search, softmax, tournament
from leaderboard.evolution.incumbent import choice
from leaderboard.evolution.incumbent.race import IncumbentRace
from leaderboard.evolution.populations import dexpbt, fire_pbt, generational, gpbt, mf_pbt, pb2, truncation
from leaderboard.evolution.rungs import RungTrials
from leaderboard.evolution.strategy import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "incumbent": Strategy(choice.propose, fold=IncumbentRace),
    "asha": Strategy(asha.propose, fold=RungTrials),
    "bohb": Strategy(bohb.propose, fold=RungTrials),
    "tournament": Strategy(tournament.propose),
    "softmax": Strategy(softmax.propose),
    "truncation": Strategy(truncation.propose, reads_history=True),
    "dexpbt": Strategy(dexpbt.propose, reads_history=True),
    "mf-pbt": Strategy(mf_pbt.propose, reads_history=True),
    "fire-pbt": Strategy(fire_pbt.propose, reads_history=True),
    "pb2": Strategy(pb2.propose, reads_history=True, requires="sklearn"),
    "gpbt": Strategy(gpbt.propose, reads_history=True),
    "generational": Strategy(generational.propose, reads_history=True),
    "random-search": Strategy(random_search.propose),
}
