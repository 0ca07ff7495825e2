"""Decides which records follow from what the leaderboard knows of a tournament. Pure.

Rules:
- Whether a tournament was running follows from a pod that still works for it, not from the leaderboard. Without such a
  pod, it counts as stopped, and a person may resume it.
- An agent has finished if it has the steps of its assignment. Every other agent may have been in training, so it is
  kept unfinished: at worst an agent is continued that had failed or was stopped early.
- The leases are not known, so every lease that a pod reports is accepted, if its token is valid.
- Events, evaluations, labels, pauses and changes of pool and objective are lost. The running time is at least that at
  which the last agent was generated.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.decisions.restoration import EPOCHS
from orchestrator.leaderboard_client import KnownAgent
from orchestrator.state.records import CANCELLED, AgentRecord, OwnershipRecord, TournamentRecord, WorkPhase
from podrace.leaderboard.v1.leaderboard_pb2 import KnownTournament

STOPPED = (
    "its record was rebuilt without a backup, and no pod works for it; whether it had ended is not known: resume it to"
    " continue"
)
POD = re.compile(r".+-p(\d{1,9})")


@dataclass(frozen=True)
class DerivedRecords:
    """The records of a tournament."""

    tournament: TournamentRecord
    agents: Sequence[AgentRecord]
    ownership: OwnershipRecord


def derived_records(
    known: KnownTournament, agents: Sequence[KnownAgent], sequence: int, mesh_id: str, owner: str, now: float
) -> DerivedRecords:
    """Returns the records of a tournament.

    Args:
        known: The tournament.
        agents: Its agents, by number; at least one.
        sequence: Its position among all tournaments.
        mesh_id: The mesh that it belongs to.
        owner: Owner of tournaments whose owner is not known.
        now: Wall time, seconds since 1970.
    """
    name, spec = known.tournament_id, known.spec
    last = agents[-1].agent
    size = spec.pool.maximum_pods if spec.synchronous else 1
    pods = [int(match[1]) for one in agents if (match := POD.fullmatch(one.agent.pod_id))]
    tournament = TournamentRecord(
        tournament_id=name,
        sequence=sequence,
        spec=spec,
        state=CANCELLED,
        reason=STOPPED,
        create_time=agents[0].agent.create_time.ToNanoseconds() / 1e9,
        end_time=now,
        running_seconds=max(one.agent.running_duration.ToNanoseconds() / 1e9 for one in agents),
        next_agent=(last.number // size + 1) * size,
        next_pod=max([*pods, len(agents) - 1]) + 1,
        next_evaluation=0,
        mesh_id=mesh_id,
        agents_failed_in_row=0,
        pods_died_in_row=0,
        best=None,
    )
    ownership = OwnershipRecord(name, known.owner or owner, known.namespace)
    return DerivedRecords(tournament, [_agent(one, known) for one in agents], ownership)


def _agent(known: KnownAgent, tournament: KnownTournament) -> AgentRecord:
    agent = known.agent
    budget = agent.assignment_environment_steps or tournament.spec.assignment.environment_steps
    done = bool(budget) and known.environment_steps >= budget
    return AgentRecord(
        agent_id=agent.agent_id,
        tournament_id=agent.tournament_id,
        number=agent.number,
        phase=WorkPhase.FINISHED if done else WorkPhase.UNFINISHED,
        lease_epoch=0,
        pod_id="",
        incarnation="",
        environment_steps=known.environment_steps,
        agent=agent,
    )


def epoch_of_restoration(highest_lease_epoch: int) -> int:
    """Returns a restoration epoch after which only unused lease epochs are granted, given the highest one so far."""
    return highest_lease_epoch // EPOCHS + 1
