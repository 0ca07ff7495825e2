"""Implements the strategy `random-search`: every agent is fresh. It is the control for all other strategies."""

from random import Random

from leaderboard.evolution.strategy import Child, Fresh, Situation


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Returns a fresh agent."""
    return Fresh("random search")
