"""Computes on request what takes seconds to minutes.

podrace/dashboard/on_demand/
  jobs.py       runs a bounded number of jobs, and keeps a bounded number of results
  reports.py    evaluations of the champion on the data that `[reports]` of the specification names
  episodes.py   videos of episodes
  handlers.py   the requests
"""
