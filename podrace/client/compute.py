"""Summarizes what the compute of a tournament was used for, and why agents were stopped early.

summary = await read_compute(client, tournament)
summary.champion_share        # share of all environment steps that the champion was trained on
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.client.client import Client
from podrace.leaderboard.v1.leaderboard_pb2 import EpisodeCorrelation, GetStatisticsResponse
from podrace.orchestrator.v1.orchestrator_pb2 import Event
from podrace.tournament.v1.tournament_pb2 import Tournament

STOPPED_KIND = "agent_stopped"
"""Kind of the event of an agent that the strategy stopped early."""
_AGENT = r"(?<![\w-])(?:[\w-]+-)?a\d+(?: \([^()]*\))?(?![\w-])"
_NUMBER = r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])"
_VARIABLE = re.compile(f"{_AGENT}|{_NUMBER}")
"""What differs between two reasons of the same kind: agents, with or without their scores, and numbers."""


@dataclass(frozen=True)
class EarlyStops:
    """Agents that were stopped early for the same kind of reason."""

    kind: str
    """The reason, with … in place of agents and numbers."""
    agents: int
    example: str
    """The reason of the last of them, in full."""


@dataclass(frozen=True)
class ComputeSummary:
    """What the compute of a tournament was used for. None: not known."""

    environment_steps: int
    """Environment steps of all agents."""
    champion_environment_steps: int | None
    """Those that the champion was trained on, with its ancestors; each step once for an ensemble."""
    pod_seconds: float | None
    """Time that pods worked on agents."""
    evaluation_seconds: float | None
    """Time of the evaluations in it."""
    separate_evaluation_seconds: float
    """Time of the evaluations outside of it: of the champion and of the candidates that could become it, of snapshots,
    and of users."""
    stopped_agents: int
    early_stops: tuple[EarlyStops, ...]
    """By kind of reason, the most frequent first."""
    correlation: EpisodeCorrelation | None
    """Correlation of the returns of different agents on the same episodes."""

    @property
    def champion_share(self) -> float | None:
        """Share of all environment steps that the champion was trained on, from 0 to 1; None without a champion."""
        if not self.environment_steps or not self.champion_environment_steps:
            return None
        return min(1.0, self.champion_environment_steps / self.environment_steps)

    @property
    def evaluation_share(self) -> float | None:
        """Share of the time of training pods in which an evaluation ran, from 0 to 1."""
        if not self.pod_seconds or self.evaluation_seconds is None:
            return None
        return min(1.0, self.evaluation_seconds / self.pod_seconds)


async def read_compute(client: Client, tournament: Tournament) -> ComputeSummary:
    """Returns the summary of a tournament, which may be running."""
    statistics = await client.get_all_statistics(tournament)
    events = await client.list_events(tournament.tournament_id)
    evaluations = await client.list_evaluations(tournament.tournament_id)
    return summary_of(tournament, statistics, events, [one.evaluation for one in evaluations])


def summary_of(
    tournament: Tournament,
    statistics: GetStatisticsResponse,
    events: Iterable[Event],
    evaluations: Iterable[Evaluation],
) -> ComputeSummary:
    """Returns the summary of a tournament. Pure.

    Args:
        tournament: The tournament.
        statistics: Its statistics, for its champion.
        events: All of its events.
        evaluations: Evaluations that pods made outside of the training of agents.
    """
    known, compute = statistics.HasField("compute"), statistics.compute
    return ComputeSummary(
        environment_steps=tournament.environment_steps,
        champion_environment_steps=compute.champion_environment_steps if known else None,
        pod_seconds=compute.pod_seconds if known else None,
        evaluation_seconds=compute.evaluation_seconds if compute.HasField("evaluation_seconds") else None,
        separate_evaluation_seconds=sum(one.wall_seconds for one in evaluations),
        stopped_agents=tournament.stopped_agents,
        early_stops=tuple(early_stops(events)),
        correlation=statistics.episode_correlation if statistics.HasField("episode_correlation") else None,
    )


def early_stops(events: Iterable[Event]) -> list[EarlyStops]:
    """Groups the agents that were stopped early by the kind of reason, the most frequent first. Pure.

    Two reasons are of the same kind if they differ only in agents and numbers.
    """
    found: dict[str, EarlyStops] = {}
    for event in events:
        if event.kind == STOPPED_KIND:
            _, _, reason = event.message.partition(" steps: ")
            kind = kind_of(reason)
            before = found[kind].agents if kind in found else 0
            found[kind] = EarlyStops(kind, before + 1, reason)
    return sorted(found.values(), key=lambda one: -one.agents)


def kind_of(reason: str) -> str:
    """Returns a reason with … in place of agents and numbers."""
    return _VARIABLE.sub("…", reason)
