"""The leaderboard: who is best, who comes next. Records every scored checkpoint, ranks the best, makes the next agents.

__main__.py      wires everything by hand and runs it
config.py        what can be set
board.py         who stands on a board, and in which order (pure)
evolution/       who comes next: the strategies, and how values are drawn and mutated (pure)
updater.py       reads what a learner submits, judges it, remembers it
generator.py     makes agents, each once
parts.py         asks custom parts, and leaves out those that fail
connections.py   how they are reached: a service, or a child process
imported.py      that process: serves a function of the user's
questions.py     what they are shown
opinions.py      what becomes of a custom updater's answer (pure)
patience.py      how long a failing part is left out (pure)
recent.py        statistics that are shown again and again
shared.py        work done once for all who want it
replay.py        takes every decision again and compares (pure)
champion.py      who is champion, judged on fresh evaluations (pure)
learning.py      how fast agents learn (pure)
family.py        what is told of agents and their ancestors (pure)
statistics.py    what the scores say about algorithms and hyperparameters (pure)
pages.py         how lists are cut into pages (pure)
records.py       what the rows of the database mean
state.py         the tables of the database
watch.py      wakes those who watch
garbage.py       deletes training files that nobody can reach
service.py       translates between the contract and all this
"""
