"""Summarizes agents for a lineage: their best and last candidates, steps and compute time. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from leaderboard.ranking.board import rank_key
from leaderboard.ranking.learning_speed import Gain, gains_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AgentSummary, Candidate
from podrace.specification.ancestor import tournament_of


def summaries_of(
    agents: Sequence[Agent], depths: Mapping[str, int], submissions: Iterable[Candidate]
) -> list[AgentSummary]:
    """Returns the summaries of some agents, in their order.

    Args:
        agents: The agents.
        depths: Their depths by id.
        submissions: All submissions of the tournament, or those of the agents and their parents, by arrival.
    """
    seen = list(submissions)
    # Scores of another tournament are made on other data, so a gain over them has no meaning.
    here = [one for one in agents if tournament_of(one.starting_checkpoint.agent_id) in ("", one.tournament_id)]
    gains = gains_of(here, seen)
    starts = {candidate.candidate_id: candidate for candidate in seen}
    own: dict[str, list[Candidate]] = {agent.agent_id: [] for agent in agents}
    for candidate in seen:
        if candidate.agent_id in own:
            own[candidate.agent_id].append(candidate)
    return [
        _summary(
            agent,
            depths[agent.agent_id],
            own[agent.agent_id],
            starts.get(agent.starting_checkpoint.manifest_digest),
            gains.get(agent.agent_id),
        )
        for agent in agents
    ]


def _summary(
    agent: Agent, depth: int, own: Sequence[Candidate], start: Candidate | None, gain: Gain | None
) -> AgentSummary:
    summary = AgentSummary(agent_id=agent.agent_id, depth=depth, submissions=len(own))
    if start is not None:
        summary.lineage_environment_steps = start.environment_steps
    if own:
        last = own[-1]
        summary.environment_steps = last.agent_environment_steps
        summary.lineage_environment_steps = last.environment_steps
        summary.core_seconds = last.core_seconds
        summary.best.CopyFrom(min(own, key=rank_key))
        summary.last.CopyFrom(last)
        for candidate in (summary.best, summary.last):
            # A page of summaries must fit in a message.
            candidate.ClearField("episode_returns")
            candidate.ClearField("matches")
    if gain is not None:
        summary.learning_speed = gain.speed
    return summary
