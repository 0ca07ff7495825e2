"""Counts environment steps, failed agents, agents that were stopped early, and evaluation epochs.

The event loop owns this state: no other thread may read or write it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from podrace.specification.ancestor import tournament_of


class Counters:
    """Totals that grow with every report of a pod.

    counters.count_steps("cartpole", "cartpole-a0", 2048)
    counters.environment_steps("cartpole")
    counters.reach_epoch("cartpole", 2)
    """

    def __init__(self) -> None:
        self._agent_steps: dict[str, int] = {}
        self._tournament_steps: defaultdict[str, int] = defaultdict(int)
        self._failed_agents: defaultdict[str, int] = defaultdict(int)
        self._stopped_agents: defaultdict[str, int] = defaultdict(int)
        self._unsaved_agents: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._unsaved_epochs: set[str] = set()

    def restore(
        self,
        steps: Mapping[str, int],
        failed_agents: Mapping[str, int],
        stopped_agents: Mapping[str, int],
        epochs: Mapping[str, int],
    ) -> None:
        """Loads the totals of a previous run, by tournament."""
        self._tournament_steps.update(steps)
        self._failed_agents.update(failed_agents)
        self._stopped_agents.update(stopped_agents)
        self._epochs.update(epochs)

    def restore_agent(self, agent_id: str, steps: int) -> None:
        """Sets the steps that are already counted of an agent, unless they are known."""
        self._agent_steps.setdefault(agent_id, steps)

    def count_steps(self, tournament_id: str, agent_id: str, steps: int) -> None:
        """Counts the steps of an agent up to `steps`, its total.

        An agent that lost its pod repeats steps since its last checkpoint; these are not counted twice.
        """
        known = self._agent_steps.get(agent_id, 0)
        if steps > known:
            self._agent_steps[agent_id] = steps
            self._tournament_steps[tournament_id] += steps - known
            self._unsaved_agents.add(agent_id)

    def environment_steps(self, tournament_id: str) -> int:
        """Environment steps over all agents of a tournament."""
        return self._tournament_steps.get(tournament_id, 0)

    def count_failure(self, tournament_id: str) -> None:
        """Counts an agent that has failed."""
        self._failed_agents[tournament_id] += 1

    def failed_agents(self, tournament_id: str) -> int:
        """Number of agents of a tournament that have failed."""
        return self._failed_agents.get(tournament_id, 0)

    def count_stop(self, tournament_id: str) -> None:
        """Counts an agent that was stopped early."""
        self._stopped_agents[tournament_id] += 1

    def stopped_agents(self, tournament_id: str) -> int:
        """Number of agents of a tournament that were stopped early."""
        return self._stopped_agents.get(tournament_id, 0)

    def reach_epoch(self, tournament_id: str, epoch: int) -> int:
        """Returns the evaluation epoch of a tournament: `epoch`, which its progress leads to, or the highest before.

        The progress leads to a lower epoch after the objective was extended.
        """
        known = self._epochs.get(tournament_id, 0)
        if epoch <= known:
            return known
        self._epochs[tournament_id] = epoch
        self._unsaved_epochs.add(tournament_id)
        return epoch

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted, and its agents."""
        for totals in (self._tournament_steps, self._failed_agents, self._stopped_agents, self._epochs):
            totals.pop(tournament_id, None)
        self._unsaved_epochs.discard(tournament_id)
        for agent_id in [name for name in self._agent_steps if tournament_of(name) == tournament_id]:
            del self._agent_steps[agent_id]
            self._unsaved_agents.discard(agent_id)

    def take_unsaved(self) -> dict[str, int]:
        """Steps of the agents that changed since the last call, by agent."""
        agents, self._unsaved_agents = self._unsaved_agents, set()
        return {agent_id: self._agent_steps[agent_id] for agent_id in agents}

    def mark_unsaved(self, agent_ids: Iterable[str]) -> None:
        """Includes these agents in the next `take_unsaved`, because they could not be saved.

        Agents that were forgotten meanwhile are omitted.
        """
        self._unsaved_agents.update(agent_id for agent_id in agent_ids if agent_id in self._agent_steps)

    def take_unsaved_epochs(self) -> dict[str, int]:
        """Evaluation epochs of the tournaments that changed since the last call, by tournament."""
        tournaments, self._unsaved_epochs = self._unsaved_epochs, set()
        return {tournament_id: self._epochs[tournament_id] for tournament_id in tournaments}

    def mark_unsaved_epochs(self, tournament_ids: Iterable[str]) -> None:
        """Includes these tournaments in the next `take_unsaved_epochs`, as `mark_unsaved` does with agents."""
        self._unsaved_epochs.update(name for name in tournament_ids if name in self._epochs)
