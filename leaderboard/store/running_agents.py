"""Owns who has not ended, in memory: reading thousands of agents from the database for each new one would take longest.

What is known holds for one point in the order in which agents are made. Where that is not the point at hand, because a
change was undone or this life is new, it is read again.
"""

from collections.abc import Iterable

from leaderboard.store import records
from podrace.database import Transaction
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

MOST_TOURNAMENTS = 16
"""That are known at a time; who has ended goes, but what a tournament leaves open when it ends would stay."""


class Unfinished:
    """The agents that have not ended, by tournament. For one thread: that of the database.

    unfinished = Unfinished()
    unfinished.note_ended(transaction, "cartpole", ["cartpole-a3"], below=4, position=5)
    unfinished.add(agent)
    """

    def __init__(self) -> None:
        self._position = 0
        self._numbers: dict[str, dict[str, int]] = {}

    def note_ended(
        self, transaction: Transaction, tournament_id: str, unfinished: Iterable[str], *, below: int, position: int
    ) -> None:
        """Remembers that all agents with a number below `below` have ended but these; what has ended stays so.

        Args:
            transaction: In which the agent at `position` is made.
            tournament_id: Whose agents.
            unfinished: Ids of those that have not ended.
            below: What is said of agents with a higher number holds for none of them.
            position: Of the agent that is made, in the order in which agents are made.
        """
        numbers = self._known(transaction, tournament_id, position)
        for agent_id in set(numbers).difference(unfinished):
            if numbers[agent_id] < below:
                records.set_ended(transaction, agent_id, position)
                del numbers[agent_id]

    def add(self, agent: Agent) -> None:
        """Knows of the agent that was made."""
        self._numbers[agent.tournament_id][agent.agent_id] = agent.number

    def _known(self, transaction: Transaction, tournament_id: str, position: int) -> dict[str, int]:
        """Numbers by agent id."""
        if position != self._position:
            self._numbers.clear()
        # If this change is undone, another agent is made at the same position.
        self._position = position + 1
        numbers = self._numbers.pop(tournament_id, None)
        if numbers is None:
            numbers = records.numbers_of_unfinished(transaction, tournament_id)
        self._numbers[tournament_id] = numbers
        while len(self._numbers) > MOST_TOURNAMENTS:
            del self._numbers[next(iter(self._numbers))]
        return numbers
