"""Collects the latest agents of a tournament and their scores, for strategies with a population.

The board has the best candidates only; a population also has its worst. The history is limited to a window before the
new agent, so that the time of a decision is bounded for any length of a tournament; it is larger if more agents train.
In a synchronous tournament it has the scores of the earlier rounds only, as the board has. Which algorithms were ever
scored is known from the whole log.

The checkpoint files of these candidates exist: garbage collection keeps the last one that each agent published.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SMALLEST_WINDOW = 200
SEATS_IN_WINDOW = 4
"""The window has at least this many times as many agents as the population."""
TRAINING_IN_WINDOW = 2
"""The window has at least this many times as many agents as are in training: the newest of them have no score yet."""


@dataclass(frozen=True)
class History:
    """The latest agents of a tournament."""

    agents: tuple[Agent, ...] = ()
    """By number."""
    submissions: tuple[Candidate, ...] = ()
    """Their submissions, by agent number, and by arrival for each agent."""
    unfinished: frozenset[str] = frozenset()
    """Ids of agents that were handed out and have not finished."""
    failed: frozenset[str] = frozenset()
    """Ids of agents that failed."""
    scored_algorithms: frozenset[str] = frozenset()
    """Algorithms of which an agent was scored, in the window or before it."""

    @cached_property
    def last(self) -> Mapping[str, Candidate]:
        """The last submission of each agent that has one, by agent id."""
        return {candidate.agent_id: candidate for candidate in self.submissions}

    @cached_property
    def by_id(self) -> Mapping[str, Agent]:
        """The agents by id."""
        return {agent.agent_id: agent for agent in self.agents}

    def has_ended(self, agent: Agent) -> bool:
        """Whether an agent has finished or failed."""
        return agent.agent_id not in self.unfinished

    def has_failed(self, agent: Agent) -> bool:
        """Whether an agent failed, or ended without a score."""
        return agent.agent_id in self.failed or (self.has_ended(agent) and agent.agent_id not in self.last)


NOTHING = History()
"""The history for strategies that use the board only."""


def window_begin(spec: TournamentSpec, number: int, unfinished: int) -> int:
    """Returns the lowest number of an agent in the history of agent `number`.

    Args:
        spec: Resolved specification.
        number: Position of the new agent.
        unfinished: How many agents were handed out and have not finished.
    """
    # In a synchronous tournament a round decides, so that the window does not depend on which pod was faster.
    training = spec.pool.maximum_pods if spec.synchronous else unfinished
    return max(0, number - max(window_size(spec), TRAINING_IN_WINDOW * training))


def visible_end(spec: TournamentSpec, number: int) -> float:
    """Returns the number of the first agent whose scores the generator of agent `number` does not see."""
    return number - number % spec.pool.maximum_pods if spec.synchronous else math.inf


def window_size(spec: TournamentSpec) -> int:
    """Returns how many agents the history has, unless many are in training."""
    return max(SMALLEST_WINDOW, SEATS_IN_WINDOW * spec.evolution.population_size)


def history_of(
    spec: TournamentSpec,
    number: int,
    agents: Iterable[Agent],
    submissions: Iterable[Candidate],
    unfinished: Collection[str],
    failed: Collection[str],
    scored_before: Collection[str] = (),
) -> History:
    """Returns the history that the generator of an agent sees; it does not depend on the order of the arguments.

    Args:
        spec: Resolved specification.
        number: Position of the new agent.
        agents: All agents of the tournament, or at least those of the window.
        submissions: All submissions of the tournament, or at least those of these agents.
        unfinished: Ids of agents that were handed out and have not finished.
        failed: Ids of agents that failed.
        scored_before: Algorithms of visible submissions that `submissions` leaves out.
    """
    begin, end = window_begin(spec, number, len(set(unfinished))), visible_end(spec, number)
    known = tuple(sorted((one for one in agents if one.number >= begin), key=lambda one: one.number))
    # Agents with later numbers may exist, because requests of pods may overtake each other. They count as unfinished;
    # otherwise two agents could take the same seat.
    later = {agent.agent_id for agent in known if agent.number >= number}
    ids = {agent.agent_id for agent in known}
    visible = [one for one in submissions if one.agent_number < end]
    seen = (one for one in visible if one.agent_id in ids)
    return History(
        agents=known,
        submissions=tuple(sorted(seen, key=lambda one: (one.agent_number, one.sequence))),
        unfinished=frozenset((ids & set(unfinished)) | later),
        failed=frozenset(ids & set(failed)),
        scored_algorithms=frozenset({one.algorithm for one in visible} | set(scored_before)),
    )
