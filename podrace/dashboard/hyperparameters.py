"""Arranges hyperparameters for parallel coordinates and for schedules over the time of a tournament. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from podrace.client.enum_values import word_of
from podrace.client.hyperparameters import hyperparameters_of
from podrace.dashboard import views
from podrace.dashboard.points import SubmissionPoints
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tournament.v1.tournament_pb2 import HyperparameterSpec, Scale, TournamentSpec

MOST_ROWS = 2000
"""Agents in an answer, at most: those with the highest scores."""
MOST_AXES = 24
"""Hyperparameters in an answer, at most."""


def searched(spec: TournamentSpec, algorithm: str) -> dict[str, HyperparameterSpec]:
    """Returns the hyperparameters of an algorithm that the tournament searches, by name."""
    known = spec.algorithms[algorithm].hyperparameters if algorithm in spec.algorithms else {}
    return {name: entry for name, entry in known.items() if _is_searched(entry)}


def _is_searched(entry: HyperparameterSpec) -> bool:
    return (entry.HasField("low") and entry.HasField("high")) or len(entry.choices) > 0


def parallel(
    spec: TournamentSpec, agents: Mapping[str, Agent], points: SubmissionPoints, algorithm: str
) -> dict[str, Any]:
    """Returns the values of each scored agent of an algorithm on an axis for each hyperparameter that differs.

    The JSON has `axes` with `name`, `scale`, and either `low` and `high` or `choices`, and `rows` with `agent_id`,
    `score` and `values` in the order of the axes.
    """
    chosen = [one for one in agents.values() if one.algorithm == algorithm and one.agent_id in points.agents]
    chosen.sort(key=lambda one: points.agents[one.agent_id].scores[-1], reverse=True)
    chosen = chosen[:MOST_ROWS]
    values = [hyperparameters_of(one) for one in chosen]
    space = searched(spec, algorithm)
    names = [name for name in _names(values) if name in space or _differs(values, name)][:MOST_AXES]
    return {
        "algorithm": algorithm,
        "axes": [_axis(name, [one.get(name) for one in values], space.get(name)) for name in names],
        "rows": [
            {
                "agent_id": one.agent_id,
                "score": points.agents[one.agent_id].scores[-1],
                "values": list(views.shown_values({name: own.get(name) for name in names}).values()),
            }
            for one, own in zip(chosen, values, strict=True)
        ],
    }


def _names(values: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({name for one in values for name in one})


def _differs(values: Iterable[Mapping[str, Any]], name: str) -> bool:
    return len({str(one.get(name)) for one in values}) > 1


def _axis(name: str, values: list[Any], space: HyperparameterSpec | None) -> dict[str, Any]:
    scale = word_of(Scale.DESCRIPTOR, space.scale) if space is not None else "linear"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values) and values:
        return {"name": views.text(name), "scale": scale, "low": min(values), "high": max(values)}
    shown = views.shown_values({str(place): value for place, value in enumerate(values)})
    return {"name": views.text(name), "scale": "choice", "choices": sorted({str(one) for one in shown.values()})}


def schedules(
    agents: Mapping[str, Agent], points: SubmissionPoints, champion: str, algorithm: str
) -> list[dict[str, Any]]:
    """Returns how each numeric hyperparameter that differs developed: of all agents, and along the champion's descent.

    An entry has `name`, `x` (running time in seconds at which an agent was generated), `y`, and `champion`, the values
    at those agents that the champion descends from (None for the others). The agents are those with the highest scores.
    """
    chosen = [one for one in agents.values() if one.algorithm == algorithm]
    chosen.sort(key=lambda one: _score(points, one.agent_id), reverse=True)
    chosen = sorted(chosen[:MOST_ROWS], key=lambda one: one.number)
    line = _descent(agents, champion)
    values = [hyperparameters_of(one) for one in chosen]
    found = []
    for name in _names(values):
        own = [one.get(name) for one in values]
        if not _differs(values, name) or not all(isinstance(value, int | float) for value in own):
            continue
        found.append(
            {
                "name": views.text(name),
                "x": [views.seconds(one.running_duration) for one in chosen],
                "y": own,
                "champion": [value if one.agent_id in line else None for one, value in zip(chosen, own, strict=True)],
                "agents": [one.agent_id for one in chosen],
            }
        )
    return found[:MOST_AXES]


def _score(points: SubmissionPoints, agent_id: str) -> float:
    return points.agents[agent_id].scores[-1] if agent_id in points.agents else float("-inf")


def _descent(agents: Mapping[str, Agent], agent_id: str) -> frozenset[str]:
    """Returns an agent and its ancestors."""
    found: set[str] = set()
    waiting = [agent_id]
    while waiting:
        name = waiting.pop()
        if name in agents and name not in found:
            found.add(name)
            waiting += agents[name].parent_agent_ids
    return frozenset(found)
