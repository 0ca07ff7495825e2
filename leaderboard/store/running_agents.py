"""Caches which agents have not ended, because reading thousands of agents for each new one would take too long.

The cache is valid for one position in the order in which agents are generated. At any other position, because a
transaction was rolled back or the service was restarted, it is read from the database again.
"""

from collections.abc import Iterable

from leaderboard.store import records
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

MOST_TOURNAMENTS = 16
"""Tournaments in the cache. Ended agents leave it, but those that run when their tournament ends would stay."""


class RunningAgents:
    """The agents that have not ended, by tournament. For use on the database thread only.

    running = RunningAgents()
    running.record_ended(transaction, "cartpole", ["cartpole-a3"], below=4, position=5)
    running.add(agent)
    """

    def __init__(self) -> None:
        self._position = 0
        self._numbers: dict[str, dict[str, int]] = {}

    def record_ended(
        self, transaction: Transaction, tournament_id: str, unfinished: Iterable[str], *, below: int, position: int
    ) -> list[str]:
        """Records that all agents with a number below `below` have ended, except the given ones.

        An agent that was recorded as ended stays ended. Returns the agents that were not recorded before.

        Args:
            transaction: The transaction in which the agent at `position` is generated.
            tournament_id: The tournament of the agents.
            unfinished: Ids of agents that have not ended.
            below: Agents with this number or a higher one are not changed.
            position: Position of the new agent in the order in which agents are generated.
        """
        numbers = self._numbers_at(transaction, tournament_id, position)
        ended = [agent_id for agent_id in set(numbers).difference(unfinished) if numbers[agent_id] < below]
        for agent_id in ended:
            records.set_ended(transaction, agent_id, position)
            del numbers[agent_id]
        return ended

    def add(self, agent: Agent) -> None:
        """Adds the agent that was generated."""
        self._numbers[agent.tournament_id][agent.agent_id] = agent.number

    def forget(self) -> None:
        """Drops all agents, because an agent was recorded without `record_ended` and `add`."""
        self._numbers.clear()

    def _numbers_at(self, transaction: Transaction, tournament_id: str, position: int) -> dict[str, int]:
        """Returns the numbers of running agents by agent id."""
        if position != self._position:
            self._numbers.clear()
        # If this transaction is rolled back, another agent is generated at the same position.
        self._position = position + 1
        numbers = self._numbers.pop(tournament_id, None)
        if numbers is None:
            numbers = records.numbers_of_unfinished(transaction, tournament_id)
        self._numbers[tournament_id] = numbers
        while len(self._numbers) > MOST_TOURNAMENTS:
            del self._numbers[next(iter(self._numbers))]
        return numbers
