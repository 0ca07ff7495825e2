"""Decides which tournaments are paused because storage accepts none of their checkpoints. Pure functions.

Rules:
- Only pods that train an agent count, and only while their lease is valid.
- A tournament is paused while all of them wait. While only some do, the others still make progress, and the clock runs.
- It is paused as well while no pod trains an agent and none is generated for lack of space.
- While the orchestrator cannot write its own database, all running tournaments are paused: nothing can be assigned,
  completed or ended. Pods that train an agent continue.
"""

from collections.abc import Collection, Iterable, Mapping
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
    """Why a tournament waits for storage, or some of its pods do."""

    fault: str
    """The error, as one of the pods or the database reported it."""
    waiting: int
    """Number of pods that wait."""
    training: int
    """Number of pods that hold an agent, these included."""
    of_database: bool = False
    """Whether the orchestrator cannot write its database."""

    @property
    def pause_reason(self) -> str:
        """Why the tournament is paused; empty: it is not."""
        return f"waiting for storage: {self.fault}" if self.waiting == self.training else ""

    def __str__(self) -> str:
        if self.of_database:
            return f"nothing could be recorded: {self.fault}"
        if not self.training:
            return f"no agent is generated: {self.fault}"
        return f"{self.waiting} of {self.training} pods wait for storage: {self.fault}"


def faults_of(reports: Iterable[Report], without_space: Mapping[str, str]) -> dict[str, StorageFault]:
    """Returns the faults by tournament; tournaments without one are left out.

    Args:
        reports: Of all pods that train an agent.
        without_space: Why no agent is generated, by tournament.
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


def faults_of_database(fault: str, running: Collection[str]) -> dict[str, StorageFault]:
    """Returns the faults by tournament while the orchestrator cannot write its database.

    Args:
        fault: Why it cannot.
        running: Ids of the running tournaments.
    """
    return {name: StorageFault(fault, 0, 0, of_database=True) for name in running}
