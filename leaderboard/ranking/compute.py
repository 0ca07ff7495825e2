"""Computes what the compute of a tournament was used for. Pure."""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, ComputeStatistics
from podrace.tournament.v1.tournament_pb2 import PodSpec


class _Trained(NamedTuple):
    """What is needed of a candidate to count the steps behind it."""

    agent_id: str
    environment_steps: int


class ComputeUse:
    """Collects what the compute of a tournament was used for, one submission after another.

    compute = ComputeUse(agents, champion_ids, spec.pod)
    for candidate in submissions:
        compute.add(candidate)
    compute.statistics()

    It keeps the candidates that agents started from, the champion, and one number of each submission.
    """

    def __init__(self, agents: Iterable[Agent], champion_ids: Iterable[str], pod: PodSpec) -> None:
        """Begins without submissions; the arguments are those of `compute_of`."""
        agents = list(agents)
        self._champion_ids, self._pod = list(champion_ids), pod
        self._grows = pod.maximum_cores > pod.cores > 0
        self._times = {one.agent_id: one.create_time.ToNanoseconds() / 1e9 for one in agents} if self._grows else {}
        self._starts = {agent.agent_id: agent.starting_checkpoint.manifest_digest for agent in agents}
        self._needed = {*self._champion_ids, *self._starts.values()}
        self._candidates: dict[str, _Trained] = {}
        self._core_seconds: dict[str, float] = {}
        self._evaluation_seconds = array("d")
        self._knows_evaluations = True

    def add(self, candidate: Candidate) -> None:
        """Adds the next judged submission, by arrival."""
        if candidate.candidate_id in self._needed:
            trained = _Trained(candidate.agent_id, candidate.agent_environment_steps)
            self._candidates[candidate.candidate_id] = trained
        self._evaluation_seconds.append(candidate.evaluation_seconds * self._size_of_pod(candidate))
        self._core_seconds[candidate.agent_id] = candidate.core_seconds
        self._knows_evaluations &= candidate.HasField("evaluation_seconds")

    def _size_of_pod(self, candidate: Candidate) -> float:
        """Returns the cores that the agent has had since its last submission, as a multiple of `pod.cores`."""
        if not self._grows:
            return 1.0
        now = candidate.submit_time.ToNanoseconds() / 1e9
        seconds = now - self._times.get(candidate.agent_id, now)
        self._times[candidate.agent_id] = now
        used = candidate.core_seconds - self._core_seconds.get(candidate.agent_id, 0.0)
        size = used / seconds / self._pod.cores if seconds > 0 else 1.0
        return min(max(size, self._pod.minimum_cores / self._pod.cores), self._pod.maximum_cores / self._pod.cores)

    def statistics(self) -> ComputeStatistics:
        """Returns the statistics."""
        cores = self._pod.cores
        evaluating = math.fsum(self._evaluation_seconds) if self._knows_evaluations else None
        return ComputeStatistics(
            champion_environment_steps=self._champion_steps(),
            pod_seconds=math.fsum(self._core_seconds.values()) / cores if cores else 0.0,
            evaluation_seconds=evaluating,
        )

    def _champion_steps(self) -> int:
        """Returns the environment steps that the champion was trained on, each step once."""
        used: dict[str, int] = {}
        waiting = [self._candidates[name] for name in self._champion_ids if name in self._candidates]
        while waiting:
            agent_id, steps = waiting.pop()
            if steps <= used.get(agent_id, -1):
                continue
            used[agent_id] = steps
            start = self._starts.get(agent_id, "")
            if start in self._candidates:
                waiting.append(self._candidates[start])
        return sum(used.values())


def compute_of(
    agents: Iterable[Agent], submissions: Iterable[Candidate], champion_ids: Sequence[str], pod: PodSpec
) -> ComputeStatistics:
    """Returns the steps that the champion was trained on, and how long pods trained and evaluated.

    Args:
        agents: All agents of the tournament.
        submissions: All judged submissions, by arrival.
        champion_ids: Ids of the candidates that act together as champion; unknown ones are ignored.
        pod: `pod` of the specification. Times are those of pods of `pod.cores`: twice the cores count twice.
    """
    compute = ComputeUse(agents, champion_ids, pod)
    for candidate in submissions:
        compute.add(candidate)
    return compute.statistics()
