"""Owns what a generator may know of the past beside the board: the latest agents of its tournament and their scores.

The board has the best; a population also has its worst, and what became of them. Known are the agents of a window
before the one that is made, so that the time a decision takes is bounded however long a tournament lasts. In a
synchronous tournament known are the scores of the earlier rounds only, as of the board.

Training files of these candidates are there: the collector keeps the last one that each agent has published.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SMALLEST_WINDOW = 200
SEATS_IN_WINDOW = 4
"""Times the population that is known at least."""
SEATED = frozenset({"truncation", "dexpbt", "pb2"})
"""Strategies whose population has seats."""


@dataclass(frozen=True)
class History:
    """The latest agents of a tournament."""

    agents: tuple[Agent, ...] = ()
    """By number."""
    submissions: tuple[Candidate, ...] = ()
    """Theirs, by agent number, each agent's by arrival."""
    unfinished: frozenset[str] = frozenset()
    """Ids of those that are handed out and not finished."""
    failed: frozenset[str] = frozenset()
    """Ids of those that could not go on."""

    @cached_property
    def last(self) -> Mapping[str, Candidate]:
        """The last submission of each agent that has one, by agent id."""
        return {candidate.agent_id: candidate for candidate in self.submissions}

    @cached_property
    def by_id(self) -> Mapping[str, Agent]:
        """The agents by id."""
        return {agent.agent_id: agent for agent in self.agents}

    def has_ended(self, agent: Agent) -> bool:
        """Whether an agent is finished or has failed."""
        return agent.agent_id not in self.unfinished

    def has_failed(self, agent: Agent) -> bool:
        """Whether it could not go on, or ended without a score."""
        return agent.agent_id in self.failed or (self.has_ended(agent) and agent.agent_id not in self.last)


NOTHING = History()
"""Of strategies that look at the board alone."""


def is_needed(spec: TournamentSpec) -> bool:
    """Whether a generator looks at the past beside the board, which takes time to read."""
    return spec.evolution.strategy in SEATED | {"generational"} or len(spec.algorithms) > 1


def window_begin(spec: TournamentSpec, number: int) -> int:
    """The lowest number of an agent that the generator of agent `number` knows."""
    return max(0, number - max(SMALLEST_WINDOW, SEATS_IN_WINDOW * spec.evolution.population_size))


def history_of(
    spec: TournamentSpec,
    number: int,
    agents: Iterable[Agent],
    submissions: Iterable[Candidate],
    unfinished: Collection[str],
    failed: Collection[str],
) -> History:
    """The history that the generator of an agent sees, whatever the order of what is given.

    Args:
        spec: Resolved.
        number: Position of the agent that is made.
        agents: All of the tournament, or at least those of the window.
        submissions: All of the tournament, or at least theirs.
        unfinished: Ids of agents that are handed out and not finished.
        failed: Ids of agents that failed.
    """
    begin = window_begin(spec, number)
    end = number - number % spec.pool.maximum_pods if spec.synchronous else None
    known = tuple(sorted((one for one in agents if one.number >= begin), key=lambda one: one.number))
    # Agents of later numbers may have been made before, and their pods' requests may have crossed this one: they are
    # taken as unfinished, or two agents might take one seat.
    later = {agent.agent_id for agent in known if agent.number >= number}
    ids = {agent.agent_id for agent in known}
    seen = (one for one in submissions if one.agent_id in ids and (end is None or one.agent_number < end))
    return History(
        agents=known,
        submissions=tuple(sorted(seen, key=lambda one: (one.agent_number, one.sequence))),
        unfinished=frozenset((ids & set(unfinished)) | later),
        failed=frozenset(ids & set(failed)),
    )
