"""Limits the environment steps of agents, so that a tournament keeps its budget of steps."""

from orchestrator.decisions import step_budget
from orchestrator.state import records
from orchestrator.state.database import StateDatabase
from orchestrator.state.records import AgentRecord, TournamentRecord
from orchestrator.state.runtime import RuntimeState


class StepLimits:
    """The limits of agents in training.

    limit = await limits.of(tournament, agent)
    if limit is not None:
        limits.record(agent, limit)
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState) -> None:
        self._state, self._runtime = state, runtime

    async def of(self, tournament: TournamentRecord, agent: AgentRecord) -> int | None:
        """Returns the own environment steps at which an agent ends at the latest; None if there is no such limit."""
        spec, name = tournament.spec, tournament.tournament_id
        known = self._runtime.step_limits.get((agent.agent_id, agent.lease_epoch))
        if known is not None:
            return known
        if not spec.objective.HasField("environment_steps"):
            return None
        if spec.synchronous:
            begin = agent.number - agent.number % tournament.round_size
            earlier = await self._state.transact(records.steps_below, name, begin)
            return step_budget.share_of_round(spec.objective, earlier, tournament.round_size)
        others = self._runtime.cache.unfinished_agents(name).values()
        promised = [
            self._promised(tournament, other) for other in others if other.agent_id != agent.agent_id and other.pod_id
        ]
        counted, quantum = self._runtime.counters.environment_steps(name), spec.evaluation.every_environment_steps
        pods = sum(pod.tournament_id == name and not pod.drain_reason for pod in self._runtime.cache.pods.values())
        left = step_budget.steps_left(spec.objective, counted, promised, pods=pods, quantum=quantum)
        return None if left is None else agent.environment_steps + left

    def is_used_up(self, tournament: TournamentRecord, agent: AgentRecord, limit: int | None) -> bool:
        """Returns whether an agent with this limit is not assigned, because no environment steps are left for it."""
        needed = tournament.spec.synchronous and agent.agent is not None
        return step_budget.is_used_up(limit, agent.environment_steps, needed=needed)

    def record(self, agent: AgentRecord, limit: int) -> None:
        """Records the limit of an agent under its present lease."""
        self._runtime.step_limits[agent.agent_id, agent.lease_epoch] = limit
        self._runtime.step_limits.pop((agent.agent_id, agent.lease_epoch - 1), None)

    def forget(self, agent: AgentRecord) -> None:
        """Forgets the limit of an agent that was not generated, because it depends on what is left by now."""
        self._runtime.step_limits.pop((agent.agent_id, agent.lease_epoch), None)

    def _promised(self, tournament: TournamentRecord, agent: AgentRecord) -> int:
        """Returns the environment steps that an agent in training, or about to be, may still train."""
        held = self._runtime.leases.held.get(agent.agent_id)
        limit = self._runtime.step_limits.get((agent.agent_id, agent.lease_epoch))
        if held is None or (agent.agent is None and limit is None):
            return 0
        own = agent.agent.assignment_environment_steps if agent.agent else 0
        own = own or tournament.spec.assignment.environment_steps
        return max(
            0, min(own, own if limit is None else limit) - max(agent.environment_steps, held.progress.environment_steps)
        )
