"""Computes how fast agents learn: the score that each gained per environment step. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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


def gains_of(agents: Iterable[Agent], submissions: Iterable[Candidate]) -> dict[str, Gain]:
    """Returns the gain of each agent that has two scores, by id.

    The later score is that of the agent's last submission. The earlier one is that of the candidate it started from.
    For a fresh agent it is that of its first submission.

    Args:
        agents: Some agents.
        submissions: Their submissions and those of their parents, in order of arrival for each agent.
    """
    by_id: dict[str, Candidate] = {}
    first: dict[str, Candidate] = {}
    last: dict[str, Candidate] = {}
    for candidate in submissions:
        by_id[candidate.candidate_id] = candidate
        first.setdefault(candidate.agent_id, candidate)
        last[candidate.agent_id] = candidate
    found = {agent.agent_id: _gain(agent, by_id, first, last) for agent in agents if agent.agent_id in last}
    return {agent_id: gain for agent_id, gain in found.items() if gain is not None}


def _gain(
    agent: Agent, by_id: Mapping[str, Candidate], first: Mapping[str, Candidate], last: Mapping[str, Candidate]
) -> Gain | None:
    end = last[agent.agent_id]
    if agent.HasField("starting_checkpoint"):
        start = by_id.get(agent.starting_checkpoint.manifest_digest)
    else:
        start = first[agent.agent_id]
    if start is None or end.environment_steps <= start.environment_steps:
        return None
    return Gain(start.environment_steps, end.environment_steps - start.environment_steps, end.score - start.score)
