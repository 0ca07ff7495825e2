"""Defines how a reconcile loop decides on its pods, which differs for pods that no launcher starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.decisions import pool_size
from orchestrator.decisions.fair_share import Demand
from orchestrator.decisions.pool_size import Limits, PodView
from orchestrator.decisions.resources import Capacity

Decide = Callable[[float, Capacity, Sequence[Demand], Sequence[PodView], Limits], tuple[list[pool_size.Action], str]]
"""See `pool_size.decide`."""


@dataclass(frozen=True)
class PoolRules:
    """Decides how many pods each tournament gets and what to do about it."""

    decide: Decide = pool_size.decide
    """Compares the existing pods with the wanted ones."""
    adapt: Callable[[Demand], Demand] = lambda demand: demand
    """Converts a demand before the decision."""


LAUNCHED_POD_RULES = PoolRules()
"""Rules for pods that a launcher starts."""
