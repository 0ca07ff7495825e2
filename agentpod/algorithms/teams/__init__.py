"""Algorithms for teams: several agents of one environment, each with a separate lane (`simulators.teams`).

All agents share one policy, and each acts on its own observation alone.
"""
