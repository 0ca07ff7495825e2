"""Owns what a look at everything shows: what decisions depend on, all of the same moment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.state.cache import StateCache
from orchestrator.state.records import AgentRecord, PodRecord, TournamentRecord


@dataclass(frozen=True)
class Observation:
    """What was committed last, all of the same moment."""

    tournaments: list[TournamentRecord]
    """Those that run or end, or have evaluations to be done, oldest first."""
    agents: Mapping[str, Mapping[str, AgentRecord]]
    """Unfinished agents, by tournament and id."""
    evaluating: set[str]
    """Tournaments with evaluations to be done."""
    pods: list[PodRecord]
    """Those not gone, oldest first."""
    states: Mapping[int, int]
    """Number of tournaments in each state."""


def observe(cache: StateCache) -> Observation:
    """Looks at everything that decisions depend on."""
    found = cache.active()
    names = [tournament.tournament_id for tournament in found]
    return Observation(
        tournaments=found,
        agents={name: cache.agents(name) for name in names},
        evaluating={name for name in names if cache.evaluations(name)},
        pods=list(cache.pods.values()),
        states=Counter(tournament.state for tournament in cache.tournaments.values()),
    )
