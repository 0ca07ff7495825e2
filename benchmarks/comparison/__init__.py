"""Provides the parts of `tournament.py`: podrace's tournament compared with what users take instead.

plan.py           which runs belong to which regime, in which order, and how long they take
tasks.py          the tasks with their search spaces and budgets
contenders.py     the contenders: strategies, controls, other libraries
command.py        runs what has no row yet, one run after another, and prints the report
measure.py        measures one run of the plan; outcome.py: what every contender returns
own.py            runs one tournament on an embedded mesh
peer_runs.py      starts the process of another library
optuna_peer.py    that process for Optuna
ray_peer.py       that process for Ray Tune
sb3_trial.py      the training of one trial with Stable-Baselines3, for both
trial_log.py      what the trials of a study publish: scores and policies over time
vector.py         podrace's simulators as vector environments of Stable-Baselines3, and their overhead
fresh.py          evaluates final policies and snapshots of every contender on the same fresh episodes
rows.py           the CSV file with one row per finished run, and curve files
oracles.py        returns of random and of best known policies, by which returns are normalized
statistics.py     normalized returns, interquartile means, bootstrap intervals, tests
report.py         tables from the CSV file
figures.py        figures from the CSV file and the curve files
"""
