"""Describes the ancestry of an agent step by step: what changed, what it gained, and what it cost. Pure."""

from collections.abc import Mapping
from typing import Any

from podrace.client.hyperparameters import hyperparameters_of
from podrace.dashboard import views
from podrace.dashboard.points import SubmissionPoints
from podrace.leaderboard.v1.leaderboard_pb2 import Agent

LONGEST_PATH = 1000
"""Ancestors in an answer, at most: the nearest."""
MOST_CHILDREN = 200
"""Children in an answer, at most."""


def changes(before: Agent, after: Agent) -> list[dict[str, Any]]:
    """Returns the hyperparameters that differ between two agents, ordered by name; None: one of them has none."""
    old, new = hyperparameters_of(before), hyperparameters_of(after)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    olds, news = views.shown_values(old), views.shown_values(new)
    found = [{"name": views.text(name), "before": olds.get(name), "after": news.get(name)} for name in names]
    if before.algorithm != after.algorithm:
        algorithms = {"before": views.text(before.algorithm), "after": views.text(after.algorithm)}
        found.insert(0, {"name": "algorithm", **algorithms})
    return found


def walk(agents: Mapping[str, Agent], points: SubmissionPoints, agent_id: str) -> dict[str, Any]:
    """Returns an agent, its ancestors from the first one to it, and its children.

    The JSON has `path` and `children`, both lists of steps, and `left_out`, the number of omitted children. A step has
    the agent, its score and that of its parent, its cost, and the changes of hyperparameters from its parent.

    Args:
        agents: All agents by id.
        points: Their scores and costs.
        agent_id: One of them.
    """
    path = [agents[agent_id]]
    while len(path) < LONGEST_PATH:
        parent = _parent(agents, path[-1])
        # A damaged record must not make a circle.
        if parent is None or parent in path:
            break
        path.append(parent)
    children = [one for one in agents.values() if agent_id in one.parent_agent_ids]
    return {
        "agent_id": agent_id,
        "path": [_step(agents, points, one) for one in reversed(path)],
        "children": [_step(agents, points, one) for one in children[:MOST_CHILDREN]],
        "left_out": max(0, len(children) - MOST_CHILDREN),
    }


def _parent(agents: Mapping[str, Agent], agent: Agent) -> Agent | None:
    return next((agents[name] for name in agent.parent_agent_ids if name in agents), None)


def _step(agents: Mapping[str, Agent], points: SubmissionPoints, agent: Agent) -> dict[str, Any]:
    parent = _parent(agents, agent)
    curve = points.agents.get(agent.agent_id)
    own, before = _score(points, agent), _score(points, parent) if parent else None
    return views.agent(agent) | {
        "score": own,
        "parent_score": before,
        "gain": own - before if own is not None and before is not None else None,
        "core_seconds": curve.compute[-1] if curve else None,
        "lineage_steps": curve.steps[-1] if curve else None,
        "submissions": len(curve) if curve else 0,
        "changes": changes(parent, agent) if parent else [],
        "starts_elsewhere": bool(agent.parent_agent_ids) and parent is None,
    }


def _score(points: SubmissionPoints, agent: Agent) -> float | None:
    """Returns the last score of an agent; None before its first."""
    curve = points.agents.get(agent.agent_id)
    return curve.scores[-1] if curve else None
