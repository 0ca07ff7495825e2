"""Computes what the compute of a tournament was used for. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence

from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, ComputeStatistics


def compute_of(
    agents: Iterable[Agent], submissions: Sequence[Candidate], champion_ids: Iterable[str], cores: float
) -> ComputeStatistics:
    """Returns the steps behind the champion, and how long pods trained and evaluated.

    Args:
        agents: All agents of the tournament.
        submissions: All judged submissions, by arrival.
        champion_ids: Ids of the candidates that act together as champion; unknown ones are ignored.
        cores: Processor cores of a pod, `pod.cores` of the specification.
    """
    candidates = {one.candidate_id: one for one in submissions}
    last = {one.agent_id: one for one in submissions}
    known = all(one.HasField("evaluation_seconds") for one in submissions)
    return ComputeStatistics(
        champion_environment_steps=_steps_behind(
            [candidates[name] for name in champion_ids if name in candidates],
            {agent.agent_id: agent.starting_checkpoint.manifest_digest for agent in agents},
            candidates,
        ),
        pod_seconds=math.fsum(one.core_seconds for one in last.values()) / cores if cores else 0.0,
        evaluation_seconds=math.fsum(one.evaluation_seconds for one in submissions) if known else None,
    )


def _steps_behind(champion: Iterable[Candidate], starts: Mapping[str, str], candidates: Mapping[str, Candidate]) -> int:
    """Returns the environment steps behind some candidates, each step once.

    Args:
        champion: The candidates.
        starts: The candidate that each agent started from, by agent id; empty for a fresh agent.
        candidates: All candidates of the tournament by id.
    """
    used: dict[str, int] = {}
    waiting = list(champion)
    while waiting:
        candidate = waiting.pop()
        if candidate.agent_environment_steps <= used.get(candidate.agent_id, -1):
            continue
        used[candidate.agent_id] = candidate.agent_environment_steps
        start = starts.get(candidate.agent_id, "")
        if start in candidates:
            waiting.append(candidates[start])
    return sum(used.values())
