"""Computes statistics of the algorithms and hyperparameters of a tournament from its scores. Pure.

Each agent counts once, with its best candidate. A mean over submissions would give more weight to agents that submit
more often.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import covariance, fmean, variance
from typing import Any, NamedTuple

from leaderboard.evolution.space import Range, Space, Value, plain, spaces_of
from leaderboard.ranking.board import rank_key
from leaderboard.ranking.learning_speed import Gain, GainsByAgent
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AlgorithmStatistics, Candidate
from podrace.specification.conditions import is_active
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, TournamentSpec


class ScoreStatistics:
    """Collects the scores of a tournament, one submission after another, and keeps a few numbers of each agent.

    scores = ScoreStatistics(spec, agents)
    for candidate in submissions:
        scores.add(candidate)
    scores.statistics()
    """

    def __init__(self, spec: TournamentSpec, agents: Sequence[Agent]) -> None:
        """Begins without submissions; the arguments are those of `statistics_of`."""
        self._spec, self._agents = spec, agents
        self._gains = GainsByAgent(agents)
        self._algorithms = {name: _AlgorithmScores() for name in sorted(spec.algorithms)}

    def add(self, candidate: Candidate) -> None:
        """Adds the next judged submission, by arrival."""
        self._gains.add(candidate)
        if scores := self._algorithms.get(candidate.algorithm):
            scores.add(candidate)

    def statistics(self) -> list[AlgorithmStatistics]:
        """Returns the statistics of each algorithm of the specification, by name."""
        gains = self._gains.found()
        left = {name: reason for agent in self._agents for name, reason in agent.left_algorithms.items()}
        found = []
        for name, scores in self._algorithms.items():
            agents = [agent for agent in self._agents if agent.algorithm == name]
            found.append(_of_algorithm(name, self._spec.algorithms[name], agents, scores, gains))
            found[-1].left_draw_reason = left.get(name, "")
        return found


def statistics_of(
    spec: TournamentSpec, agents: Sequence[Agent], submissions: Iterable[Candidate]
) -> list[AlgorithmStatistics]:
    """Returns the statistics of each algorithm of the specification, by name.

    Args:
        spec: Resolved specification.
        agents: All agents of the tournament.
        submissions: All judged submissions, with any verdict.
    """
    scores = ScoreStatistics(spec, agents)
    for candidate in submissions:
        scores.add(candidate)
    return scores.statistics()


class _Best(NamedTuple):
    rank: tuple[Any, ...]
    score: float


class _Longest(NamedTuple):
    environment_steps: int
    core_seconds: float


class _AlgorithmScores:
    """Of the submissions of an algorithm: how many, and of each agent the best one and the one that trained longest."""

    def __init__(self) -> None:
        self.submissions = 0
        self.best: dict[str, _Best] = {}
        self.longest: dict[str, _Longest] = {}

    def add(self, candidate: Candidate) -> None:
        """Adds the next one; of equal ones the first counts."""
        self.submissions += 1
        agent_id, rank, steps = candidate.agent_id, rank_key(candidate), candidate.agent_environment_steps
        if agent_id not in self.best or rank < self.best[agent_id].rank:
            self.best[agent_id] = _Best(rank, candidate.score)
        if agent_id not in self.longest or steps > self.longest[agent_id].environment_steps:
            self.longest[agent_id] = _Longest(steps, candidate.core_seconds)


def _of_algorithm(
    name: str,
    algorithm: AlgorithmSpec,
    agents: Sequence[Agent],
    submitted: _AlgorithmScores,
    gains: Mapping[str, Gain],
) -> AlgorithmStatistics:
    best_scores = {agent_id: best.score for agent_id, best in submitted.best.items()}
    scores, longest = list(best_scores.values()), submitted.longest.values()
    speeds = {agent.agent_id: gains[agent.agent_id].speed for agent in agents if agent.agent_id in gains}
    return AlgorithmStatistics(
        algorithm=name,
        agents=len(agents),
        submissions=submitted.submissions,
        mean_best_score=fmean(scores) if scores else 0.0,
        best_score=max(scores, default=0.0),
        environment_steps=sum(last.environment_steps for last in longest),
        core_seconds=sum(last.core_seconds for last in longest),
        hyperparameter_score_covariance=_covariances(name, algorithm, agents, best_scores),
        best_score_variance=variance(scores) if len(scores) > 1 else 0.0,
        learning_speed=_speed([gains[agent_id] for agent_id in speeds]),
        hyperparameter_speed_covariance=_covariances(name, algorithm, agents, speeds),
    )


def _speed(gains: Sequence[Gain]) -> float:
    """Returns the score gained per environment step over all agents; long runs weigh more, because they are less
    noisy.
    """
    steps = sum(gain.steps for gain in gains)
    return sum(gain.score for gain in gains) / steps if steps else 0.0


def _covariances(
    name: str, algorithm: AlgorithmSpec, agents: Sequence[Agent], outcomes: Mapping[str, float]
) -> dict[str, float]:
    """Returns the sample covariance (divisor n - 1) of each numeric searched hyperparameter with an outcome.

    Agents in which the condition of a hyperparameter is not met are left out of its covariance. A hyperparameter with
    fewer than two agents has none.
    """
    values = {
        agent.agent_id: {key: plain(value) for key, value in agent.hyperparameters.fields.items()}
        for agent in agents
        if agent.agent_id in outcomes
    }
    found = {}
    for key, space in spaces_of(name, algorithm).items():
        known = {
            agent_id: own[key] for agent_id, own in values.items() if is_active(algorithm.hyperparameters[key], own)
        }
        numbers = [number for value in known.values() if (number := _number(value, space)) is not None]
        if len(numbers) == len(known) > 1:
            found[key] = covariance(numbers, [outcomes[agent_id] for agent_id in known])
    return found


def _number(value: Value, space: Space) -> float | None:
    """Returns a hyperparameter on the scale of its range; None if it is not a number."""
    if not isinstance(value, float):
        return None
    return space.coordinate(value) if isinstance(space, Range) else value
