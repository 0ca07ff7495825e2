"""Algorithms for teams: several agents of one environment, each with a separate lane (`simulators.teams`).

Each agent acts on its own observation alone. All agents share one policy; with `share_parameters = false` of IPPO and
MAPPO each has a separate one.
"""
