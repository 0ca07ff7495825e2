"""Owns what a look at the database shows: everything that decisions depend on, all of the same moment."""

from dataclasses import dataclass

from orchestrator import records
from orchestrator.records import (
    ENDING,
    RUNNING,
    AgentRecord,
    EvaluationRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
)
from orchestrator.state import Transaction


@dataclass(frozen=True)
class Observed:
    """What the database says, all of the same moment."""

    tournaments: list[TournamentRecord]
    """Those that run or end, or have evaluations to be done, oldest first."""
    agents: dict[str, list[AgentRecord]]
    """Unfinished agents, by tournament."""
    evaluating: set[str]
    """Tournaments with evaluations to be done."""
    pods: list[PodRecord]
    """Those not gone, oldest first."""
    states: dict[int, int]
    """Number of tournaments in each state."""


def observe(transaction: Transaction) -> Observed:
    """Reads everything that decisions depend on."""
    found = records.select(
        transaction,
        TournamentRecord,
        "state IN (?, ?) OR tournament_id IN (SELECT tournament_id FROM evaluations WHERE phase = ?) ORDER BY sequence",
        RUNNING,
        ENDING,
        WorkPhase.UNFINISHED,
    )
    names = [tournament.tournament_id for tournament in found]
    return Observed(
        tournaments=found,
        agents={name: records.unfinished(transaction, AgentRecord, name) for name in names},
        evaluating={name for name in names if records.unfinished(transaction, EvaluationRecord, name)},
        pods=records.live_pods(transaction),
        states=dict(transaction.execute("SELECT state, count(*) FROM tournaments GROUP BY state")),
    )
