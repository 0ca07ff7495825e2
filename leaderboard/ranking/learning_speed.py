"""Computes how fast agents learn: the score that each gained per environment step. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate


@dataclass(frozen=True)
class Gain:
    """The change of an agent's score, from one score to a later one along its lineage."""

    start_steps: int
    """Environment steps along the lineage at the earlier score."""
    steps: int
    """Environment steps between them, at least 1."""
    score: float
    """Change of the score."""

    @property
    def speed(self) -> float:
        """Score gained per environment step."""
        return self.score / self.steps


class _Scored(NamedTuple):
    """What a gain needs of a candidate."""

    environment_steps: int
    score: float
    by_built_in: bool
    """Whether the built-in evaluator scored it in place of a failing plugin: other numbers than the plugin's."""


class GainsByAgent:
    """Collects the scores of some agents, one submission after another, and keeps three of each agent.

    gains = GainsByAgent(agents)
    for candidate in submissions:
        gains.add(candidate)
    gains.found()
    """

    def __init__(self, agents: Iterable[Agent]) -> None:
        """Begins without scores."""
        self._starts = {
            agent.agent_id: agent.starting_checkpoint.manifest_digest if agent.HasField("starting_checkpoint") else None
            for agent in agents
        }
        self._needed = set(self._starts.values())
        self._by_id: dict[str, _Scored] = {}
        self._first: dict[str, _Scored] = {}
        self._last: dict[str, _Scored] = {}

    def add(self, candidate: Candidate) -> None:
        """Adds the next submission of one of the agents, or of a parent, by arrival; others make no difference."""
        agent_id, candidate_id = candidate.agent_id, candidate.candidate_id
        scored = _Scored(candidate.environment_steps, candidate.score, bool(candidate.evaluator_fault))
        if candidate_id in self._needed:
            self._by_id[candidate_id] = scored
        if agent_id in self._starts:
            self._first.setdefault(agent_id, scored)
            self._last[agent_id] = scored

    def found(self) -> dict[str, Gain]:
        """Returns the gain of each agent that has two scores of one evaluator, by id, in the order of the agents."""
        gains = {agent_id: self._gain(agent_id) for agent_id in self._starts if agent_id in self._last}
        return {agent_id: gain for agent_id, gain in gains.items() if gain is not None}

    def _gain(self, agent_id: str) -> Gain | None:
        start_id, end = self._starts[agent_id], self._last[agent_id]
        start = self._first[agent_id] if start_id is None else self._by_id.get(start_id)
        if start is None or end.environment_steps <= start.environment_steps or start.by_built_in != end.by_built_in:
            return None
        return Gain(start.environment_steps, end.environment_steps - start.environment_steps, end.score - start.score)


def gains_of(agents: Iterable[Agent], submissions: Iterable[Candidate]) -> dict[str, Gain]:
    """Returns the gain of each agent that has two scores of one evaluator, by id.

    The later score is that of the agent's last submission. The earlier one is that of the candidate it started from.
    For a fresh agent it is that of its first submission.

    Args:
        agents: Some agents.
        submissions: Their submissions and those of their parents, in order of arrival for each agent.
    """
    gains = GainsByAgent(agents)
    for candidate in submissions:
        gains.add(candidate)
    return gains.found()
