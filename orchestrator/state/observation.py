"""Collects what a reconcile cycle decides on, all of the same moment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.state import pauses
from orchestrator.state.cache import StateCache
from orchestrator.state.records import AgentRecord, PodRecord, TournamentRecord


@dataclass(frozen=True)
class Observation:
    """The committed state that decisions depend on, all of the same moment."""

    tournaments: list[TournamentRecord]
    """Tournaments that are running or ending, or have evaluations that are not done, oldest first."""
    agents: Mapping[str, Mapping[str, AgentRecord]]
    """Unfinished agents, by tournament and id."""
    training: set[str]
    """Tournaments that are running and not paused by a user."""
    evaluating: set[str]
    """Tournaments with evaluations that are not done."""
    pods: list[PodRecord]
    """Pods that are not gone, oldest first."""
    states: Mapping[int, int]
    """Number of tournaments in each state."""


def observe(cache: StateCache) -> Observation:
    """Collects everything that decisions depend on."""
    found = cache.active_tournaments()
    names = [tournament.tournament_id for tournament in found]
    return Observation(
        tournaments=found,
        agents={name: cache.unfinished_agents(name) for name in names},
        training={one.tournament_id for one in found if pauses.is_training(cache, one)},
        evaluating={name for name in names if cache.unfinished_evaluations(name)},
        pods=list(cache.pods.values()),
        states=Counter(tournament.state for tournament in cache.tournaments.values()),
    )
