"""Decides which tournaments are paused because storage accepts none of their checkpoints. Pure functions.

Rules:
- Only pods that train an agent count, and only while their lease is valid.
- A tournament is paused while all of them wait. While only some do, the others still make progress, and the clock runs.
- It is paused as well while no pod trains an agent and the leaderboard generates none for lack of space.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What a pod that trains an agent reported last."""

    tournament_id: str
    """Tournament of the agent."""
    pod_id: str
    """The pod."""
    fault: str
    """Why it waits for storage; empty: it does not wait."""


@dataclass(frozen=True)
class StorageFault:
    """Pods of one tournament that wait for storage."""

    fault: str
    """Why, as one of them reported it."""
    waiting: int
    """Number of pods that wait."""
    training: int
    """Number of pods that hold an agent, these included."""

    @property
    def pause_reason(self) -> str:
        """Why the tournament is paused; empty: it is not."""
        return f"waiting for storage: {self.fault}" if self.waiting == self.training else ""

    def __str__(self) -> str:
        if not self.training:
            return f"no agent is generated: {self.fault}"
        return f"{self.waiting} of {self.training} pods wait for storage: {self.fault}"


def faults_of(reports: Iterable[Report], without_space: Mapping[str, str]) -> dict[str, StorageFault]:
    """Returns the faults by tournament; tournaments without one are left out.

    Args:
        reports: Of all pods that train an agent.
        without_space: Why the leaderboard generates no agent, by tournament.
    """
    pods: dict[str, list[Report]] = {}
    for report in reports:
        pods.setdefault(report.tournament_id, []).append(report)
    found: dict[str, StorageFault] = {}
    for tournament_id, reported in pods.items():
        waiting = sorted((one.pod_id, one.fault) for one in reported if one.fault)
        if waiting:
            found[tournament_id] = StorageFault(waiting[0][1], len(waiting), len(reported))
    for tournament_id, fault in without_space.items():
        if tournament_id not in pods:
            found[tournament_id] = StorageFault(fault, 0, 0)
    return found
