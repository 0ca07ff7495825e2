"""Builds the JSON that the pages show from messages of the mesh. Pure.

Text from the mesh is cut at `LONGEST_TEXT` and has its control characters escaped. The pages insert it as text, never
as HTML.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.client.enum_values import state_of, word_of
from podrace.client.hyperparameters import hyperparameters_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, Origin
from podrace.orchestrator.v1.orchestrator_pb2 import Event, GpuUse, Pod, PodActivity
from podrace.printable import printable
from podrace.specification.files import to_toml, to_values
from podrace.tournament.v1.tournament_pb2 import Layout, Tournament, TournamentState

LONGEST_TEXT = 2000
"""Characters of a text in an answer, at most."""
MOST_GPUS = 16
"""GPUs of a pod in an answer, at most."""


def text(value: str) -> str:
    """Returns text of the mesh on one line, with control characters escaped, and not longer than `LONGEST_TEXT`."""
    shown = printable(value[: LONGEST_TEXT + 1])
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 1]}…"


def number(value: float) -> float | None:
    """Returns a number for JSON; None for one that JSON cannot represent."""
    return value if math.isfinite(value) else None


def seconds(moment: Timestamp | Duration) -> float:
    """Returns the seconds of a duration, or of a time since the epoch."""
    return moment.seconds + moment.nanos * 1e-9


def tournament(entry: Tournament) -> dict[str, Any]:
    """Shape of a tournament in the list, and at the top of its page."""
    scored = entry.HasField("best_score")
    objective = entry.spec.objective
    return {
        "tournament_id": entry.tournament_id,
        "name": text(entry.spec.name),
        "state": word_of(TournamentState.DESCRIPTOR, state_of(entry)),
        "reason": text(entry.reason),
        "pause_reason": text(entry.pause_reason),
        "environment": text(entry.spec.environment.id),
        "algorithms": sorted(text(name) for name in entry.spec.algorithms),
        "strategy": text(entry.spec.evolution.strategy),
        "create_time": seconds(entry.create_time),
        "end_time": seconds(entry.end_time) if entry.HasField("end_time") else None,
        "running_seconds": seconds(entry.running_duration),
        "environment_steps": entry.environment_steps,
        "steps_per_second": number(entry.steps_per_second),
        "agents": entry.agents,
        "failed_agents": entry.failed_agents,
        "stopped_agents": entry.stopped_agents,
        "best_score": number(entry.best_score) if scored else None,
        "best_score_standard_error": number(entry.best_score_standard_error) if scored else None,
        "best_agent_id": entry.best_agent_id,
        "champion": entry.champion_manifest_digest,
        "champion_reason": text(entry.champion_selection.reason),
        "target_return": objective.target_return if objective.HasField("target_return") else None,
        "wall_clock_seconds": (
            seconds(objective.wall_clock_duration) if objective.HasField("wall_clock_duration") else None
        ),
        "objective_steps": objective.environment_steps if objective.HasField("environment_steps") else None,
        "owner": text(entry.owner),
        "namespace": text(entry.namespace),
        "pool": to_values(entry.spec.pool),
        "etag": entry.etag,
    }


def details(entry: Tournament) -> dict[str, Any]:
    """Shape of a tournament with its whole specification."""
    return tournament(entry) | {"specification": to_toml(entry.spec)}


def candidate(entry: Candidate) -> dict[str, Any]:
    """Shape of a candidate on the board."""
    estimated = entry.HasField("estimate")
    return {
        "rank": entry.rank,
        "candidate_id": entry.candidate_id,
        "agent_id": entry.agent_id,
        "agent_number": entry.agent_number,
        "algorithm": text(entry.algorithm),
        "score": number(entry.score),
        "standard_error": number(entry.standard_error),
        "estimate": number(entry.estimate) if estimated else None,
        "estimate_error": number(entry.estimate_error) if estimated else None,
        "episodes": entry.episodes,
        "environment_steps": entry.environment_steps,
        "core_seconds": number(entry.core_seconds),
        "depth": entry.depth,
        "submit_time": seconds(entry.submit_time),
        "reason": text(entry.reason),
        "games": games(entry.matches),
        "metrics": {text(name): number(value) for name, value in sorted(entry.episode_metrics.items())},
    }


def games(matches: Iterable[MatchResult]) -> list[int] | None:
    """Returns how many games a rated candidate has won, drawn and lost; None: it was rated by no games."""
    each = [(one.wins, one.draws, one.losses) for one in matches]
    return [sum(column) for column in zip(*each, strict=True)] if each else None


def pod(entry: Pod) -> dict[str, Any]:
    """Shape of a pod."""
    progress = entry.progress
    return {
        "pod_id": entry.pod_id,
        "activity": word_of(PodActivity.DESCRIPTOR, entry.activity),
        "agent_id": entry.agent_id,
        "layout": word_of(Layout.DESCRIPTOR, entry.layout),
        "plane": text(progress.plane),
        "steps_per_second": number(progress.steps_per_second),
        "environment_steps": progress.environment_steps,
        "policy_version": progress.policy_version,
        "policy_lag": number(progress.policy_lag),
        "training_return": number(progress.training_return) if progress.HasField("training_return") else None,
        "score": number(progress.score) if progress.HasField("score") else None,
        "waits": text(progress.storage_fault),
        "gpus": [gpu(one) for one in progress.gpus[:MOST_GPUS]],
        "start_time": seconds(entry.start_time),
    }


def gpu(entry: GpuUse) -> dict[str, Any]:
    """Shape of the use of a GPU; None: not reported."""
    return {
        "uuid": text(entry.uuid),
        "utilization_percent": entry.utilization_percent if entry.HasField("utilization_percent") else None,
        "memory_used_bytes": entry.memory_used_bytes if entry.HasField("memory_used_bytes") else None,
        "memory_total_bytes": entry.memory_total_bytes if entry.HasField("memory_total_bytes") else None,
    }


POOL_KINDS = frozenset(
    (
        "pod_started", "pod_joined", "pod_draining", "pod_gone", "pod_died", "pod_terminated", "pod_killed",
        "pod_unknown", "pool_short", "role_stuck", "storage_fault", "storage_recovered",
    )
)  # fmt: skip
"""Kinds of events that explain the size of the pool."""


def event(entry: Event) -> dict[str, Any]:
    """Shape of an event."""
    return {
        "sequence": entry.sequence,
        "time": seconds(entry.time),
        "kind": text(entry.kind),
        "pod_id": entry.pod_id,
        "agent_id": entry.agent_id,
        "message": text(entry.message),
    }


def matching(
    events: Iterable[Event],
    *,
    kinds: frozenset[str] = frozenset(),
    agent: str = "",
    pod_id: str = "",
    words: str = "",
    before: int = 0,
    limit: int = 200,
) -> list[Event]:
    """Returns the newest events that match all given conditions, newest first.

    Args:
        events: Events, oldest first.
        kinds: Wanted kinds; empty: all.
        agent: Id of an agent or its last part, such as `a7`; empty: any.
        pod_id: Id of a pod or its last part; empty: any.
        words: Text that the message contains, in any case; empty: any.
        before: Only events with a smaller sequence number; 0: all.
        limit: Number of events to return, at most.
    """
    found = []
    for entry in reversed(list(events)):
        wanted = (
            (not kinds or entry.kind in kinds)
            and (not before or entry.sequence < before)
            and _names(entry.agent_id, agent)
            and _names(entry.pod_id, pod_id)
            and words.lower() in entry.message.lower()
        )
        if wanted:
            found.append(entry)
            if len(found) == limit:
                break
    return found


def _names(identity: str, wanted: str) -> bool:
    return not wanted or identity == wanted or identity.endswith(f"-{wanted}")


def agent(entry: Agent) -> dict[str, Any]:
    """Shape of an agent."""
    return {
        "agent_id": entry.agent_id,
        "number": entry.number,
        "algorithm": text(entry.algorithm),
        "origin": word_of(Origin.DESCRIPTOR, entry.origin),
        "parents": list(entry.parent_agent_ids),
        "hyperparameters": shown_values(hyperparameters_of(entry)),
        "seat": entry.seat if entry.HasField("seat") else None,
        "rung": entry.rung if entry.HasField("rung") else None,
        "reason": text(entry.reason),
        "create_time": seconds(entry.create_time),
        "running_seconds": seconds(entry.running_duration),
        "tournament_environment_steps": entry.tournament_environment_steps,
        "starting_checkpoint": entry.starting_checkpoint.manifest_digest,
    }


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns hyperparameters with text and lists in a bounded form."""
    return {text(name): _shown(value) for name, value in values.items()}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return number(value)
    return text(value if isinstance(value, str) else str(value))


def page(entries: Sequence[Any], offset: int, limit: int) -> dict[str, Any]:
    """Shape of a part of a list: the entries, and how many there are altogether."""
    return {"entries": list(entries[offset : offset + limit]), "total": len(entries), "offset": offset}
