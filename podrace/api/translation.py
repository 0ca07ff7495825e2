"""Translates messages of the contracts into the records of the Python interface. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from podrace.api import records
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client.curve.points import CurvePoint, seconds_of
from podrace.client.enum_values import state_of, word_of
from podrace.client.hyperparameters import hyperparameters_of
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, Origin, Verdict
from podrace.orchestrator.v1.orchestrator_pb2 import Event
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentState


def status_of(tournament: Tournament) -> records.TournamentStatus:
    """Translates a tournament."""
    scored = tournament.HasField("best_score")
    return records.TournamentStatus(
        tournament_id=tournament.tournament_id,
        state=word_of(TournamentState.DESCRIPTOR, state_of(tournament)),
        reason=tournament.reason,
        pause_reason=tournament.pause_reason,
        running_seconds=seconds_of(tournament.running_duration),
        environment_steps=tournament.environment_steps,
        steps_per_second=tournament.steps_per_second,
        agents=tournament.agents,
        failed_agents=tournament.failed_agents,
        stopped_agents=tournament.stopped_agents,
        best_score=tournament.best_score if scored else None,
        best_score_standard_error=tournament.best_score_standard_error if scored else None,
        labels=dict(tournament.labels),
    )


def candidate_of(entry: Candidate) -> records.Candidate:
    """Translates a candidate."""
    return records.Candidate(
        candidate_id=entry.candidate_id,
        agent_id=entry.agent_id,
        algorithm=entry.algorithm,
        rank=entry.rank or None,
        score=entry.score,
        standard_error=entry.standard_error,
        estimate=entry.estimate if entry.HasField("estimate") else None,
        episodes=entry.episodes,
        environment_steps=entry.environment_steps,
        agent_environment_steps=entry.agent_environment_steps,
        verdict=word_of(Verdict.DESCRIPTOR, entry.verdict),
        reason=entry.reason,
        submit_time=time_of(entry.submit_time),
        episode_metrics=dict(sorted(entry.episode_metrics.items())),
    )


def point_of(point: CurvePoint) -> records.LearningPoint:
    """Translates a point of a learning curve."""
    return records.LearningPoint(
        curve=point.who,
        agent_id=point.snapshot.agent_id,
        algorithm=point.snapshot.algorithm,
        seconds=point.seconds,
        environment_steps=point.environment_steps,
        mean=point.mean,
        standard_deviation=point.standard_deviation,
        standard_error=point.standard_error,
        episodes=point.evaluation.episodes,
    )


def champion_of(tournament: Tournament, members: list[Checkpoint], agents: Mapping[str, Agent]) -> records.Champion:
    """Translates the champion of a tournament.

    Args:
        tournament: The tournament.
        members: The checkpoints that act together, one or more.
        agents: Agents of the members by id.
    """
    return records.Champion(
        score=tournament.best_score,
        standard_error=tournament.best_score_standard_error,
        members=tuple(_part(one, agents[one.agent_id]) for one in members),
        reason=tournament.champion_selection.reason,
    )


def _part(checkpoint: Checkpoint, agent: Agent) -> records.ChampionPart:
    return records.ChampionPart(
        candidate_id=checkpoint.manifest_digest,
        agent_id=checkpoint.agent_id,
        algorithm=agent.algorithm,
        hyperparameters=hyperparameters_of(agent),
    )


def agent_of(entry: Agent) -> records.Agent:
    """Translates an agent."""
    return records.Agent(
        agent_id=entry.agent_id,
        number=entry.number,
        algorithm=entry.algorithm,
        hyperparameters=hyperparameters_of(entry),
        origin=word_of(Origin.DESCRIPTOR, entry.origin),
        parent_agent_ids=tuple(entry.parent_agent_ids),
        seed=entry.seed,
        reason=entry.reason,
        create_time=time_of(entry.create_time),
    )


def event_of(entry: Event) -> records.Event:
    """Translates an event."""
    return records.Event(
        sequence=entry.sequence,
        time=time_of(entry.time),
        kind=entry.kind,
        message=entry.message,
        pod_id=entry.pod_id,
        agent_id=entry.agent_id,
    )


def time_of(timestamp: Timestamp) -> datetime:
    """Returns a time with the time zone UTC."""
    found: Any = timestamp.ToDatetime(tzinfo=UTC)
    return found  # type: ignore[no-any-return]
