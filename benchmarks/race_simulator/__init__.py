"""Simulates races of learning agents: which strategy makes the best policy of P pods and T quanta of training each?

    python -m benchmarks.race_simulator                                  # all families and contenders, 2 and 8 pods
    python -m benchmarks.race_simulator --pods 2,8 --replications 200 --contenders tournament,truncation,random-long
    python -m benchmarks.race_simulator --contenders tournament --set evolution.fresh_probability=0
    python -m benchmarks.race_simulator --quick

The decisions are those of the leaderboard's own code (agents, strategies, board, champion), which gets real messages.
Only learning is simulated. It needs numpy and no simulator, network or store.

families.py    the tasks: how good the defaults are, how deceptive fast learning is, noise, luck
learning.py    the state of an agent, one quantum of training, and its score on the episodes of an epoch
records.py     the leaderboard of one race: generates agents and judges their scores with the leaderboard's functions
contenders.py  what takes part: every strategy of the leaderboard, and the controls
race.py        one race
table.py       races over seeds in several processes; means, standard errors, tables

One quantum is the training of an agent between two scores. All contenders get P * T quanta of pod time. An agent has
three searched hyperparameters, which the simulation maps to [0, 1]^3 (read: learning rate, horizon, exploration).

Learning is a caricature. It can show that a rule is harmful; that a rule helps needs real tasks
(`benchmarks/tournament.py`).
"""
