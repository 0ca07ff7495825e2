"""Owns the strategy `random-search`: every agent is fresh. The control that evolution must beat."""

from random import Random

from leaderboard.evolution.strategy import Child, Fresh, Situation


def propose(situation: Situation, random: Random) -> Fresh | Child:
    """Answers always the same."""
    return Fresh("random search")
