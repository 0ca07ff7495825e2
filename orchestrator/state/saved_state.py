"""Reads from the database what a previous run saved, and writes the counters that grow all the time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.state import records
from orchestrator.state.cache import FAILURES_KEPT
from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    AgentRecord,
    EvaluationRecord,
    LabelsRecord,
    OwnershipRecord,
    PauseRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


@dataclass(frozen=True)
class SavedState:
    """What a previous run saved."""

    tournaments: list[TournamentRecord]
    works: list[WorkRecord]
    """Unfinished agents and evaluations."""
    steps: dict[str, int]
    """Environment steps by tournament."""
    failed_agents: dict[str, int]
    """Number of failed agents by tournament."""
    stopped_agents: dict[str, int] = field(default_factory=dict)
    """Number of agents that were stopped early, by tournament."""
    pods: Sequence[PodRecord] = ()
    """Pods that are not gone."""
    failures: Sequence[AgentRecord] = ()
    """The latest agents that failed, oldest first."""
    ownerships: Sequence[OwnershipRecord] = ()
    """The owners of the tournaments."""
    pauses: Sequence[PauseRecord] = ()
    """Tournaments that users have paused."""
    labels: Sequence[LabelsRecord] = ()
    """Labels of tournaments."""
    evaluation_epochs: dict[str, int] = field(default_factory=dict)
    """Highest evaluation epoch by tournament."""
    restored_epoch: int = 0
    """Epoch of backups with which the database was restored last; 0: it never was."""


@dataclass(frozen=True)
class UnsavedChanges:
    """Counters to write to the database."""

    agent_steps: dict[str, int]
    """Environment steps by agent."""
    running_seconds: dict[str, float]
    """Running time by tournament."""
    best: dict[str, Candidate]
    """Best candidate by tournament."""
    evaluation_epochs: dict[str, int] = field(default_factory=dict)
    """Highest evaluation epoch by tournament."""


def load_saved_state(transaction: Transaction) -> SavedState:
    """Reads what a previous run saved."""
    totals = transaction.execute("SELECT tournament_id, SUM(environment_steps) FROM agents GROUP BY tournament_id")
    count = "SELECT tournament_id, COUNT(*) FROM agents WHERE phase = ? GROUP BY tournament_id"
    failed = transaction.execute(count, WorkPhase.FAILED)
    stopped = transaction.execute(count, WorkPhase.STOPPED)
    return SavedState(
        records.select(transaction, TournamentRecord, "true ORDER BY sequence"),
        [
            *records.select(transaction, AgentRecord, "phase = ? ORDER BY number", WorkPhase.UNFINISHED),
            *records.select(transaction, EvaluationRecord, "phase = ? ORDER BY number", WorkPhase.UNFINISHED),
        ],
        {name: int(steps) for name, steps in totals},
        {name: int(agents) for name, agents in failed},
        {name: int(agents) for name, agents in stopped},
        records.live_pods(transaction),
        [failure for name, _ in failed for failure in _latest_failures(transaction, name)],
        records.select(transaction, OwnershipRecord, "true ORDER BY rowid"),
        records.select(transaction, PauseRecord, "reason != ''"),
        records.select(transaction, LabelsRecord, "true"),
        {name: int(epoch) for name, epoch in transaction.execute("SELECT tournament_id, epoch FROM evaluation_epochs")},
        restored_epoch(transaction),
    )


def _latest_failures(transaction: Transaction, tournament_id: str) -> list[AgentRecord]:
    condition = "tournament_id = ? AND phase = ? ORDER BY number DESC LIMIT ?"
    latest = records.select(transaction, AgentRecord, condition, tournament_id, WorkPhase.FAILED, FAILURES_KEPT)
    return latest[::-1]


def write_changes(transaction: Transaction, changes: UnsavedChanges) -> None:
    """Writes counters to the rows of their agents and tournaments."""
    # One statement for all agents: with one per agent, this thread would wait for the interpreter lock each time.
    transaction.execute(
        "UPDATE agents SET environment_steps = CAST(steps.value AS BIGINT) FROM json_each(?) AS steps"
        " WHERE agent_id = steps.key",
        json.dumps(changes.agent_steps),
    )
    for tournament_id, seconds in changes.running_seconds.items():
        transaction.execute(
            "UPDATE tournaments SET running_seconds = ? WHERE tournament_id = ?", seconds, tournament_id
        )
    for tournament_id, best in changes.best.items():
        transaction.execute(
            "UPDATE tournaments SET best = ? WHERE tournament_id = ?", best.SerializeToString(), tournament_id
        )
    for tournament_id, epoch in changes.evaluation_epochs.items():
        # A row is stored only for a tournament that was not deleted meanwhile.
        transaction.execute(
            "INSERT INTO evaluation_epochs SELECT tournament_id, CAST(? AS INTEGER) FROM tournaments"
            " WHERE tournament_id = ? ON CONFLICT (tournament_id) DO UPDATE SET epoch = excluded.epoch",
            epoch,
            tournament_id,
        )


def restored_epoch(transaction: Transaction) -> int:
    """Returns the epoch of backups with which the database was restored last; 0: it never was."""
    return int(transaction.execute("SELECT restored_epoch FROM identity")[0][0])


def raise_restored_epoch(transaction: Transaction, epoch: int) -> None:
    """Records that the database was restored with an epoch, unless it was with a higher one."""
    transaction.execute("UPDATE identity SET restored_epoch = ?", max(epoch, restored_epoch(transaction)))


def has_tournaments(transaction: Transaction) -> bool:
    """Whether the database has any tournament, or one that is being deleted."""
    return any(transaction.execute(f"SELECT 1 FROM {table} LIMIT 1") for table in ("tournaments", "deletions"))
