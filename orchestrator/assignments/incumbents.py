"""Finds out whether the incumbent of a tournament whose pods may grow is trained, and in which pod it continues.

The leaderboard continues the incumbent with the next new agent when no agent of its trial is unfinished. The pods that
stop so that another one can grow leave unfinished agents behind, which must not come first then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.decisions.dispatch import PausedIncumbent
from orchestrator.decisions.pod_sizes.changes import limits_of
from orchestrator.decisions.pod_sizes.first_pods import has_one_founder
from orchestrator.state import records, resize_records
from orchestrator.state.database import Transaction
from orchestrator.state.records import AgentRecord, TournamentRecord, WorkPhase, WorkRecord
from orchestrator.state.resize_records import ResizePhase


@dataclass(frozen=True)
class LeadingTrial:
    """The trial that leads."""

    number: int
    """Number of its first agent."""
    paused: PausedIncumbent | None
    """None while one of its agents is unfinished."""


def leading_trial(transaction: Transaction, tournament: TournamentRecord, incumbent_id: str) -> LeadingTrial | None:
    """Returns the trial that leads a tournament; None if its agents need no preference.

    Args:
        transaction: The transaction to read in.
        tournament: The tournament.
        incumbent_id: What the leaderboard reported last as the newest agent of the trial; empty: nothing.
    """
    if limits_of(tournament.spec) is None:
        return None
    if not tournament.next_agent and has_one_founder(tournament.spec):
        return LeadingTrial(0, PausedIncumbent(_free_seat(transaction, tournament, ())))
    if not incumbent_id:
        return None
    newest = records.find(transaction, AgentRecord, incumbent_id)
    if newest is None or newest.trial is None or not _may_continue(transaction, tournament, newest):
        return None
    unfinished = records.unfinished(transaction, AgentRecord, tournament.tournament_id)
    if any(one.trial in (None, newest.trial) for one in unfinished):
        return LeadingTrial(newest.trial, None)
    return LeadingTrial(newest.trial, PausedIncumbent(_free_seat(transaction, tournament, unfinished)))


def in_order(works: Sequence[WorkRecord], leading: LeadingTrial | None) -> Sequence[WorkRecord]:
    """Returns work with the agents of the leading trial first, then those that may turn out to continue it."""
    if leading is None:
        return works
    order = {leading.number: 0, None: 1}
    return sorted(works, key=lambda work: order.get(work.trial, 2) if isinstance(work, AgentRecord) else -1)


def _may_continue(transaction: Transaction, tournament: TournamentRecord, newest: AgentRecord) -> bool:
    """Whether the next agent can continue this one; if not, it must not come before agents that wait."""
    if newest.phase == WorkPhase.FAILED or tournament.spec.evolution.generator:
        return False
    name = f"{tournament.tournament_id}-a{tournament.next_agent - 1}"
    last = records.find(transaction, AgentRecord, name)
    left = last.agent.left_algorithms if last and last.agent else {}
    return newest.agent is not None and newest.agent.algorithm not in left


def _free_seat(transaction: Transaction, tournament: TournamentRecord, unfinished: Sequence[AgentRecord]) -> str:
    """Returns the pod in which the incumbent continues; empty if any pod will do.

    It is the pod that is replaced by one of another size, or the new one if that is ready, or the largest grown pod,
    unless it trains an agent, or runs an evaluation for which the incumbent would wait.
    """
    name = tournament.tournament_id
    changes = resize_records.under_way(transaction, name)
    staying = resize_records.staying_pods(transaction, name)
    if changes:
        warming = changes[0].phase == ResizePhase.WARMING
        seat = changes[0].predecessor_id if warming else changes[0].pod_id
    else:
        seat = next((pod.pod_id for pod in staying if pod.cores > tournament.spec.pod.cores), "")
    if not any(pod.pod_id == seat for pod in staying):
        return ""
    busy = any(one.pod_id == seat for one in unfinished) or resize_records.evaluates(transaction, name, seat)
    return "" if busy else seat
