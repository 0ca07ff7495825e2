"""Builds messages for the tests of the dashboard."""

from collections.abc import Mapping
from typing import Any

from podrace.leaderboard.v1.leaderboard_pb2 import (
    ORIGIN_FRESH,
    ORIGIN_MUTATION,
    VERDICT_ACCEPTED,
    Agent,
    Candidate,
)

TOURNAMENT = "t-abcdef"


def candidate(sequence: int, agent: int = 0, score: float = 0.0, **fields: Any) -> Candidate:
    """A submission that arrives `sequence` seconds after the start of the tournament (second 0 of the epoch)."""
    found = Candidate(
        candidate_id=f"{sequence:064x}",
        tournament_id=TOURNAMENT,
        agent_id=f"{TOURNAMENT}-a{agent}",
        agent_number=agent,
        algorithm="ppo",
        sequence=sequence,
        score=score,
        verdict=VERDICT_ACCEPTED,
        environment_steps=100 * sequence,
        agent_environment_steps=100 * sequence,
        core_seconds=float(sequence),
    )
    found.submit_time.seconds = sequence
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def agent(number: int, parent: int | None = None, values: Mapping[str, Any] | None = None, **fields: Any) -> Agent:
    """An agent, fresh or a child of another one."""
    found = Agent(
        agent_id=f"{TOURNAMENT}-a{number}",
        tournament_id=TOURNAMENT,
        number=number,
        algorithm="ppo",
        origin=ORIGIN_FRESH if parent is None else ORIGIN_MUTATION,
        parent_agent_ids=[] if parent is None else [f"{TOURNAMENT}-a{parent}"],
        **fields,
    )
    found.hyperparameters.update(dict(values or {}))
    found.running_duration.seconds = number
    return found
