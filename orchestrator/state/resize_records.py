"""Maps the rows of resizes. In a resize, a pod of another size takes an agent over from the pod that trains it."""

from dataclasses import dataclass, fields
from enum import StrEnum

from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import AgentRecord, EvaluationRecord, PodPhase, PodRecord, WorkPhase


class ResizePhase(StrEnum):
    """State of a resize."""

    WARMING = "warming"
    READY = "ready"
    HANDED_OVER = "handed_over"
    DONE = "done"
    ABANDONED = "abandoned"


UNDER_WAY = (ResizePhase.WARMING, ResizePhase.READY)
"""Phases in which the new pod does not have the agent yet."""


@dataclass(frozen=True)
class ResizeRecord:
    """One resize; its row is written before the new pod is started."""

    pod_id: str
    """The new pod."""
    tournament_id: str
    predecessor_id: str
    """The pod that is replaced."""
    agent_id: str
    """The agent that is kept for the new pod. Until that is ready, the agent that it grows for; empty if it shrinks."""
    phase: ResizePhase
    scores: int
    """Scores of incumbents when it was decided."""
    begin_time: float
    """Seconds since 1970."""
    gap_seconds: float | None
    """Time in which nothing was trained; None if it was not measured."""

    @property
    def under_way(self) -> bool:
        """Whether the new pod does not have the agent yet."""
        return self.phase in UNDER_WAY


COLUMNS = tuple(field.name for field in fields(ResizeRecord))


def of_tournament(transaction: Transaction, tournament_id: str) -> list[ResizeRecord]:
    """Returns the resizes of a tournament, oldest first."""
    return _select(transaction, "tournament_id = ? ORDER BY begin_time", tournament_id)


def under_way(transaction: Transaction, tournament_id: str) -> list[ResizeRecord]:
    """Returns the resizes of a tournament that are under way, oldest first."""
    condition = "tournament_id = ? AND phase IN (?, ?) ORDER BY begin_time"
    return _select(transaction, condition, tournament_id, *UNDER_WAY)


def of_pod(transaction: Transaction, pod_id: str) -> ResizeRecord | None:
    """Returns the resize under way in which a pod is the new one."""
    found = _select(transaction, "pod_id = ?", pod_id)
    return next((one for one in found if one.under_way), None)


def staying_pods(transaction: Transaction, tournament_id: str) -> list[PodRecord]:
    """Returns the pods of a tournament that were not asked to stop, the largest first, then the oldest."""
    condition = "tournament_id = ? AND phase != ? AND drain_reason = '' ORDER BY cores DESC, start_time"
    return records.select(transaction, PodRecord, condition, tournament_id, PodPhase.GONE)


def evaluates(transaction: Transaction, tournament_id: str, pod_id: str) -> bool:
    """Returns whether an unfinished evaluation of a tournament is assigned to a pod."""
    condition = "tournament_id = ? AND phase = ? AND pod_id = ?"
    found = records.select(transaction, EvaluationRecord, condition, tournament_id, WorkPhase.UNFINISHED, pod_id)
    return bool(found)


def handed_over_to(transaction: Transaction, pod_id: str) -> ResizeRecord | None:
    """Returns the resize by which a pod has its first agent, until it is recorded that the pod trains."""
    found = _select(transaction, "pod_id = ? AND phase = ?", pod_id, ResizePhase.HANDED_OVER)
    return found[0] if found else None


def keeper_of(transaction: Transaction, agent_id: str) -> str:
    """Returns the pod that an agent is kept for; empty if any pod may have it."""
    living = "pod_id IN (SELECT pod_id FROM pods WHERE phase != ?)"
    found = _select(transaction, f"agent_id = ? AND phase = ? AND {living}", agent_id, ResizePhase.READY, PodPhase.GONE)
    return found[0].pod_id if found else ""


def agent_of(transaction: Transaction, resize: ResizeRecord) -> AgentRecord | None:
    """Returns the agent that was assigned to the old pod last and has not been given back."""
    unfinished = records.unfinished(transaction, AgentRecord, resize.tournament_id)
    return next((one for one in unfinished if one.pod_id == resize.predecessor_id), None)


def _select(transaction: Transaction, condition: str, *values: object) -> list[ResizeRecord]:
    rows = transaction.execute(f"SELECT {', '.join(COLUMNS)} FROM resizes WHERE {condition}", *values)
    found = (dict(zip(COLUMNS, row, strict=True)) for row in rows)
    return [ResizeRecord(**{**row, "phase": ResizePhase(row["phase"])}) for row in found]


def save(transaction: Transaction, resize: ResizeRecord) -> None:
    """Inserts a resize, or replaces the one with the same new pod."""
    places, updates = ", ".join("?" * len(COLUMNS)), ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
    transaction.execute(
        f"INSERT INTO resizes ({', '.join(COLUMNS)}) VALUES ({places}) ON CONFLICT (pod_id) DO UPDATE SET {updates}",
        *(getattr(resize, name) for name in COLUMNS),
    )
