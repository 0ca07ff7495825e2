"""Summarizes agents for a lineage: their best and last candidates, steps and compute time. Pure."""

from collections.abc import Mapping, Sequence

from leaderboard.ranking.board import rank_key
from leaderboard.ranking.learning_speed import Gain, GainsByAgent
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AgentSummary, Candidate
from podrace.specification.ancestor import tournament_of


class Summaries:
    """Summarizes agents. Submissions are added one at a time, because all of a long tournament would fill the memory.

    summaries = Summaries(agents, depths)
    summaries.add(candidate)
    summaries.found()
    """

    def __init__(self, agents: Sequence[Agent], depths: Mapping[str, int]) -> None:
        """Creates it.

        Args:
            agents: The agents.
            depths: Their depths by id.
        """
        self._agents, self._depths = agents, depths
        # Scores of another tournament are made on other data, so a gain over them has no meaning.
        here = [one for one in agents if tournament_of(one.starting_checkpoint.agent_id) in ("", one.tournament_id)]
        self._gains = GainsByAgent(here)
        self._starts: dict[str, int | None] = dict.fromkeys(one.starting_checkpoint.manifest_digest for one in agents)
        self._own = {agent.agent_id: _Submissions() for agent in agents}

    def add(self, candidate: Candidate) -> None:
        """Adds the next submission by arrival; those of the agents and of their parents are needed."""
        self._gains.add(candidate)
        if candidate.candidate_id in self._starts:
            self._starts[candidate.candidate_id] = candidate.environment_steps
        if candidate.agent_id in self._own:
            self._own[candidate.agent_id].add(candidate)

    def found(self) -> list[AgentSummary]:
        """Returns the summaries in the order of the agents."""
        gained = self._gains.found()
        return [
            _summary(
                agent,
                self._depths[agent.agent_id],
                self._own[agent.agent_id],
                self._starts[agent.starting_checkpoint.manifest_digest],
                gained.get(agent.agent_id),
            )
            for agent in self._agents
        ]


class _Submissions:
    """The submissions of an agent: how many, the best and the last one."""

    def __init__(self) -> None:
        self.count = 0
        self.best = self.last = Candidate()

    def add(self, candidate: Candidate) -> None:
        """Adds the next one."""
        if not self.count or rank_key(candidate) < rank_key(self.best):
            self.best = candidate
        self.last = candidate
        self.count += 1


def _summary(agent: Agent, depth: int, own: _Submissions, start_steps: int | None, gain: Gain | None) -> AgentSummary:
    summary = AgentSummary(agent_id=agent.agent_id, depth=depth, submissions=own.count)
    if start_steps is not None:
        summary.lineage_environment_steps = start_steps
    if own.count:
        last = own.last
        summary.environment_steps = last.agent_environment_steps
        summary.lineage_environment_steps = last.environment_steps
        summary.core_seconds = last.core_seconds
        summary.best.CopyFrom(own.best)
        summary.last.CopyFrom(last)
        for candidate in (summary.best, summary.last):
            # A page of summaries must fit in a message.
            candidate.ClearField("episode_returns")
            candidate.ClearField("matches")
    if gain is not None:
        summary.learning_speed = gain.speed
    return summary
