"""Counts the deaths of pods that were not asked to stop, and fails what they have in common: their tournament or agent.

- A tournament fails after MAXIMUM_DEATHS pods in a row that could not start: a broken image, a plugin that crashes at
  once. Pods that trained, or that died from outside as far as can be seen, are not among them.
- An agent fails after MOST_LOSSES pods in a row that died while they trained it, and none of which scored it, stored a
  checkpoint of it, or gave it back with an update. Its tournament fails if its agents fail in a row.
- After each of these deaths but the first of an agent, the next pod starts later, so that pods that crash again and
  again take few processors from others.
"""

from dataclasses import dataclass, replace

from orchestrator.decisions.dispatch import MOST_LOSSES
from orchestrator.decisions.pool_size import MAXIMUM_DEATHS
from orchestrator.state import records, transitions
from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    RUNNING,
    AgentRecord,
    EvaluationRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
)


@dataclass(frozen=True)
class Death:
    """What follows from the end of a pod."""

    tournament_id: str
    in_row: int = 0
    """Deaths in a row because of which the next pod starts later; 0: it starts at once."""
    failed_agent: bool = False
    """Whether the agent of the pod has failed."""


def count(transaction: Transaction, pod: PodRecord, last_log_line: str) -> Death:
    """Counts the death of a pod that was not asked to stop."""
    tournament = records.find(transaction, TournamentRecord, pod.tournament_id)
    evaluations = records.unfinished(transaction, EvaluationRecord, pod.tournament_id)
    if tournament is None or (tournament.state != RUNNING and not evaluations):
        # The pod was informed that the tournament has ended, and stopped.
        return Death(pod.tournament_id)
    starts = 0 if pod.useful else _count_failed_start(transaction, tournament, evaluations, last_log_line)
    losses, failed = _count_loss(transaction, pod, last_log_line)
    return Death(pod.tournament_id, max(starts, losses - 1), failed)


def _count_failed_start(
    transaction: Transaction,
    tournament: TournamentRecord,
    evaluations: list[EvaluationRecord],
    last_log_line: str,
) -> int:
    """Returns the number of pods in a row that could not start, and fails the tournament after the last one."""
    deaths = tournament.pods_died_in_row + 1
    last = deaths >= MAXIMUM_DEATHS
    records.save(transaction, replace(tournament, pods_died_in_row=0 if last else deaths))
    if last:
        reason = f"{_cause(last_log_line)} ({deaths} pods in a row died before they trained or scored anything)"
        transitions.fail_tournament(transaction, tournament.tournament_id, reason)
        for evaluation in evaluations:
            transitions.end_evaluation(transaction, replace(evaluation, phase=WorkPhase.FAILED, error=reason))
    return deaths


def _count_loss(transaction: Transaction, pod: PodRecord, last_log_line: str) -> tuple[int, bool]:
    """Returns the number of pods in a row that the agent of a pod lost, and whether the agent fails because of it."""
    agent = transitions.last_agent_of(transaction, pod)
    tournament = records.find_tournament(transaction, pod.tournament_id)
    if agent is None or agent.phase != WorkPhase.UNFINISHED or tournament.state != RUNNING:
        return 0, False
    losses = transitions.find_losses(transaction, agent.agent_id) + 1
    held_elsewhere = agent.pod_id not in ("", pod.pod_id)
    if losses < MOST_LOSSES or held_elsewhere:
        transitions.save_losses(transaction, agent, losses)
        return losses, False
    _fail(transaction, agent, pod, f"{_cause(last_log_line)} ({losses} pods in a row died while they trained it)")
    return losses, True


def _fail(transaction: Transaction, agent: AgentRecord, pod: PodRecord, message: str) -> None:
    failed = replace(agent, phase=WorkPhase.FAILED, pod_id="", incarnation="")
    transitions.forget_losses(transaction, agent.agent_id)
    records.save(transaction, failed)
    transaction.record_event(
        "agent_failed",
        f"{agent.agent_id} failed after {agent.environment_steps} steps: {message}",
        tournament_id=agent.tournament_id,
        pod_id=pod.pod_id,
        agent_id=agent.agent_id,
    )
    transitions.count_end(transaction, failed, message)


def _cause(last_log_line: str) -> str:
    return last_log_line.removeprefix("error: ") or "the latest pod wrote nothing to its log"
