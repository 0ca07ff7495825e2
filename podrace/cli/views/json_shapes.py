"""Builds the JSON output of commands, one function per shape. Keys may be added but never renamed or removed."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli.terminal import formats
from podrace.cli.views import compute as compute_view
from podrace.cli.views.progress import objectives
from podrace.client.compute import ComputeSummary
from podrace.client.enum_values import word_of
from podrace.client.hyperparameters import HyperparametersByAgent, hyperparameters_of
from podrace.client.plugin_fallbacks import PluginFallbacks
from podrace.client.scores import standard_error
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AlgorithmStatistics, Candidate, Origin
from podrace.orchestrator.v1.orchestrator_pb2 import Event, Pod, PodActivity
from podrace.specification.files import to_values
from podrace.tournament.v1.tournament_pb2 import Layout, Tournament


def result(tournament: Tournament, folder: Path, known: HyperparametersByAgent) -> dict[str, Any]:
    """Shape of `train`: how a tournament ended, and the folder of its results.

    Args:
        tournament: The tournament.
        folder: Folder of its results.
        known: Hyperparameters of the agents that are its champion.
    """
    scored = tournament.HasField("best_score")
    return {
        "tournament_id": tournament.tournament_id,
        "state": formats.state(tournament),
        "reason": tournament.reason,
        "objective": objectives(tournament),
        "best_score": tournament.best_score if scored else None,
        "best_score_standard_error": tournament.best_score_standard_error if scored else None,
        "best_agent_id": tournament.best_agent_id or None,
        "champion_hyperparameters": _values_of(tournament.best_agent_id, known),
        "total_environment_steps": tournament.environment_steps,
        "failed_agents": tournament.failed_agents,
        "wall_seconds": formats.seconds(tournament.running_duration),
        "champion_checkpoint": tournament.champion_manifest_digest or None,
        **_selection(tournament, known),
        "folder": str(folder),
    }


def _selection(tournament: Tournament, known: HyperparametersByAgent) -> dict[str, Any]:
    """Keys that describe how the champion was selected; null before, and if nothing was evaluated again."""
    selected, selection = tournament.HasField("champion_selection"), tournament.champion_selection
    return {
        "reported_episodes": selection.reported_episodes if selected else None,
        "selection_score": selection.selection_score if selected else None,
        "selection_score_standard_error": selection.selection_standard_error if selected else None,
        "champion_reason": selection.reason if selected else None,
        "champion_members": members(selection.members, known),
    }


def members(checkpoints: Iterable[Checkpoint], known: HyperparametersByAgent) -> list[dict[str, Any]]:
    """Shape of the other members of an ensemble; empty for a policy that acts alone."""
    return [checkpoint(one, known) for one in checkpoints]


def checkpoint(entry: Checkpoint, known: HyperparametersByAgent) -> dict[str, Any]:
    """Shape of a checkpoint: the beginning of `evaluate`, and each member of an ensemble."""
    return {
        "agent_id": entry.agent_id,
        "candidate_id": entry.manifest_digest,
        "hyperparameters": _values_of(entry.agent_id, known),
    }


def listed(tournament: Tournament, folder: Path, known: HyperparametersByAgent) -> dict[str, Any]:
    """Shape of one tournament in `ls`."""
    return result(tournament, folder, known) | {
        "environment": tournament.spec.environment.id,
        "labels": dict(sorted(tournament.labels.items())),
        "pause_reason": tournament.pause_reason or None,
        "agents": tournament.agents,
        "steps_per_second": tournament.steps_per_second,
        "create_time": _time(tournament.create_time),
        "end_time": _time(tournament.end_time) if tournament.HasField("end_time") else None,
    }


def shown(
    tournament: Tournament,
    folder: Path,
    pods: list[Pod],
    events: list[Event],
    statistics: list[AlgorithmStatistics],
    compute: ComputeSummary,
    fallbacks: list[PluginFallbacks],
    known: HyperparametersByAgent,
) -> dict[str, Any]:
    """Shape of `show`: everything about a tournament."""
    return listed(tournament, folder, known) | {
        "spec": to_values(tournament.spec),
        "pods": [pod(entry, known) for entry in pods],
        "events": [event(entry) for entry in events],
        "algorithms": [algorithm_statistics(entry) for entry in statistics],
        **compute_view.as_json(compute),
        "plugin_fallbacks": [asdict(entry) for entry in fallbacks],
    }


def candidate(entry: Candidate, known: HyperparametersByAgent) -> dict[str, Any]:
    """Shape of one candidate in `standings`."""
    return {
        "rank": entry.rank,
        "agent_id": entry.agent_id,
        "candidate_id": entry.candidate_id,
        "algorithm": entry.algorithm,
        "hyperparameters": _values_of(entry.agent_id, known),
        "score": entry.score,
        "standard_error": entry.standard_error,
        "estimate": entry.estimate if entry.HasField("estimate") else None,
        "estimate_error": entry.estimate_error if entry.HasField("estimate") else None,
        "evaluation_epoch": entry.evaluation_epoch if entry.HasField("evaluation_epoch") else None,
        "episodes": entry.episodes,
        "environment_steps": entry.environment_steps,
        "parent_agent_ids": list(entry.parent_agent_ids),
        "evaluator_fault": entry.evaluator_fault or None,
        "replay_steps": entry.replay_steps,
        "replay_memory_steps": entry.replay_memory_steps,
        "episode_metrics": dict(sorted(entry.episode_metrics.items())),
    }


def pod(entry: Pod, known: HyperparametersByAgent) -> dict[str, Any]:
    """Shape of one pod in `show`."""
    return {
        "pod_id": entry.pod_id,
        "activity": word_of(PodActivity.DESCRIPTOR, entry.activity),
        "agent_id": entry.agent_id or None,
        "hyperparameters": _values_of(entry.agent_id, known),
        "layout": word_of(Layout.DESCRIPTOR, entry.layout),
        "environment_steps": entry.progress.environment_steps,
        "steps_per_second": entry.progress.steps_per_second,
        "policy_version": entry.progress.policy_version,
        "policy_lag": entry.progress.policy_lag,
        "plane": entry.progress.plane or None,
        "start_time": _time(entry.start_time),
    }


def event(entry: Event) -> dict[str, Any]:
    """Shape of one event in `show` and `events`."""
    return {
        "sequence": entry.sequence,
        "time": _time(entry.time),
        "kind": entry.kind,
        "pod_id": entry.pod_id or None,
        "agent_id": entry.agent_id or None,
        "message": entry.message,
    }


def algorithm_statistics(entry: AlgorithmStatistics) -> dict[str, Any]:
    """Shape of the statistics of one algorithm in `show`."""
    return {
        "algorithm": entry.algorithm,
        "agents": entry.agents,
        "submissions": entry.submissions,
        "mean_best_score": entry.mean_best_score,
        "best_score": entry.best_score,
        "best_score_variance": entry.best_score_variance,
        "learning_speed": entry.learning_speed,
        "environment_steps": entry.environment_steps,
        "core_seconds": entry.core_seconds,
        "hyperparameter_score_covariance": dict(sorted(entry.hyperparameter_score_covariance.items())),
        "hyperparameter_speed_covariance": dict(sorted(entry.hyperparameter_speed_covariance.items())),
        "left_draw_reason": entry.left_draw_reason or None,
    }


def agent(entry: Agent) -> dict[str, Any]:
    """Shape of one agent in `lineage AGENT`."""
    return {
        "agent_id": entry.agent_id,
        "number": entry.number,
        "algorithm": entry.algorithm,
        "origin": word_of(Origin.DESCRIPTOR, entry.origin),
        "parent_agent_ids": list(entry.parent_agent_ids),
        "hyperparameters": hyperparameters_of(entry),
        "seed": entry.seed,
        "reason": entry.reason,
    }


def evaluation(entry: Evaluation) -> dict[str, Any]:
    """Shape of an evaluation in `evaluate` and report.json."""
    return {
        "mean_return": entry.mean_return,
        "standard_error": standard_error(entry),
        "episodes": entry.episodes,
        "mean_length_steps": entry.mean_length_steps,
        "seed": entry.seed,
        "objective": entry.objective or "return",
        "undiscounted_return": entry.undiscounted_return if entry.objective else entry.mean_return,
        "fold_deviation": entry.fold_deviation if entry.HasField("fold_deviation") else None,
        "metrics": dict(sorted(entry.metrics.items())),
        "episode_metrics": dict(sorted(entry.episode_metrics.items())),
        "traces": {
            name: {"values": list(trace.values), "labels": list(trace.labels)}
            for name, trace in sorted(entry.traces.items())
        },
    }


def _values_of(agent_id: str, known: HyperparametersByAgent) -> dict[str, Any] | None:
    """Returns the hyperparameters of an agent; None if they are not known or there is no agent."""
    return dict(known[agent_id]) if agent_id in known else None


def _time(timestamp: Timestamp) -> str:
    return timestamp.ToJsonString()
