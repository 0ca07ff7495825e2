"""Computes statistics of the algorithms and hyperparameters of a tournament from its scores. Pure.

Each agent counts once, with its best candidate. A mean over submissions would give more weight to agents that submit
more often.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import covariance, fmean, variance
from typing import Any

from leaderboard.evolution.space import Range, Space, Value, plain, spaces_of
from leaderboard.ranking.board import rank_key
from leaderboard.ranking.learning_speed import Gain, gains_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AlgorithmStatistics, Candidate
from podrace.specification.conditions import is_active
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, TournamentSpec


def statistics_of(
    spec: TournamentSpec, agents: Sequence[Agent], submissions: Sequence[Candidate]
) -> list[AlgorithmStatistics]:
    """Returns the statistics of each algorithm of the specification, by name.

    Args:
        spec: Resolved specification.
        agents: All agents of the tournament.
        submissions: All judged submissions, with any verdict.
    """
    gains = gains_of(agents, submissions)
    left = {name: reason for agent in agents for name, reason in agent.left_algorithms.items()}
    found = [
        _of_algorithm(
            name,
            spec.algorithms[name],
            [agent for agent in agents if agent.algorithm == name],
            [candidate for candidate in submissions if candidate.algorithm == name],
            gains,
        )
        for name in sorted(spec.algorithms)
    ]
    for entry in found:
        entry.left_draw_reason = left.get(entry.algorithm, "")
    return found


def _of_algorithm(
    name: str,
    algorithm: AlgorithmSpec,
    agents: Sequence[Agent],
    submissions: Sequence[Candidate],
    gains: Mapping[str, Gain],
) -> AlgorithmStatistics:
    best = _by_agent(submissions, rank_key)
    longest = _by_agent(submissions, lambda candidate: -candidate.agent_environment_steps).values()
    scores = [candidate.score for candidate in best.values()]
    speeds = {agent.agent_id: gains[agent.agent_id].speed for agent in agents if agent.agent_id in gains}
    best_scores = {agent_id: candidate.score for agent_id, candidate in best.items()}
    return AlgorithmStatistics(
        algorithm=name,
        agents=len(agents),
        submissions=len(submissions),
        mean_best_score=fmean(scores) if scores else 0.0,
        best_score=max(scores, default=0.0),
        environment_steps=sum(last.agent_environment_steps for last in longest),
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


def _by_agent(submissions: Iterable[Candidate], key: Callable[[Candidate], Any]) -> dict[str, Candidate]:
    """Returns the submission with the smallest key of each agent."""
    found: dict[str, Candidate] = {}
    for candidate in submissions:
        other = found.get(candidate.agent_id)
        if other is None or key(candidate) < key(other):
            found[candidate.agent_id] = candidate
    return found


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
