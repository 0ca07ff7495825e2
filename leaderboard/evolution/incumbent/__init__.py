"""Implements the strategy `incumbent`: the leading trial continues, and all others challenge it.

The trial that leads, the incumbent, is the first to get a free pod; a single pod divides its time between the incumbent
and challengers. It is never restarted: what was learned is continued instead of repeated. The other pods train
challengers. Fresh ones explore at first; later they are forks of the incumbent with other hyperparameters. Challengers
climb rungs, each several times as long as the one before, and only the best of a rung are promoted (asynchronous
successive halving). A challenger that leads by more than the error for several scores becomes the incumbent. The
founder of each algorithm, the trial with the values of the specification, keeps a share of one pod's time even if
another trial leads, because what learns fastest at first need not end highest.

race.py    state of the race: incumbent, founders, leads, rungs, stops (a fold of the log)
choice.py  what the next agent is
forks.py   hyperparameters of a fork
improvement.py  whether the incumbent still improves

Sources. Successive halving without waiting: Li et al., "A System for Massively Parallel Hyperparameter Tuning",
MLSys 2020. Forks that keep the weights of their parent: Jaderberg et al., "Population Based Training of Neural
Networks", arXiv 1711.09846. That greedy populations lose slow starts: Doulazmi et al., "Multiple-Frequencies
Population-Based Training", RLC 2025.
"""
