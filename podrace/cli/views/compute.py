"""Shows what the compute of a tournament was used for, as lines of text or as JSON. Pure."""

from typing import Any

from podrace.cli.terminal import formats
from podrace.client.compute import ComputeSummary
from podrace.comparison.paired import LEAST_CORRELATION
from podrace.leaderboard.v1.leaderboard_pb2 import EpisodeCorrelation

KINDS_SHOWN = 5
"""Largest number of kinds of reasons for early stops that are shown."""


def facts(summary: ComputeSummary) -> list[tuple[str, str]]:
    """Returns name and text of each fact that is known."""
    found = []
    if summary.champion_share is not None:
        behind, steps = formats.count(summary.champion_environment_steps or 0), summary.environment_steps
        share = formats.percent(summary.champion_share)
        found.append(("champion lineage", f"{behind} of {formats.count(steps)} steps ({share})"))
    if text := _evaluation(summary):
        found.append(("evaluation time", text))
    if summary.correlation:
        found.append(("common episodes", _correlation(summary.correlation)))
    if summary.stopped_agents or summary.early_stops:
        found.append(("stopped early", formats.things(summary.stopped_agents, "agent")))
    kinds = summary.early_stops[:KINDS_SHOWN]
    return [*found, *(("", f"{formats.count(stops.agents)}, for instance: {stops.example}") for stops in kinds)]


def _evaluation(summary: ComputeSummary) -> str:
    parts = []
    if summary.evaluation_share is not None:
        parts.append(f"{formats.percent(summary.evaluation_share)} of the time of training pods")
    if summary.separate_evaluation_seconds:
        parts.append(f"{formats.duration(summary.separate_evaluation_seconds)} of pod time outside of training")
    return ", and ".join(parts)


def _correlation(found: EpisodeCorrelation) -> str:
    """Describes how scores are compared."""
    how = "one by one" if found.correlation > LEAST_CORRELATION else "by their means, because that is too low"
    over = formats.things(found.pairs, "pair")
    return f"correlation {found.correlation:.2f} over {over} of agents; compared {how}"


def as_json(summary: ComputeSummary) -> dict[str, Any]:
    """Shape of the keys about compute in `show`, in report.json and in results of grids."""
    correlation = summary.correlation
    return {
        "compute": {
            "environment_steps": summary.environment_steps,
            "champion_environment_steps": summary.champion_environment_steps,
            "champion_step_share": summary.champion_share,
            "pod_seconds": summary.pod_seconds,
            "evaluation_seconds": summary.evaluation_seconds,
            "evaluation_share": summary.evaluation_share,
            "separate_evaluation_seconds": summary.separate_evaluation_seconds,
        },
        "early_stops": {
            "agents": summary.stopped_agents,
            "kinds": [
                {"kind": stops.kind, "agents": stops.agents, "example": stops.example} for stops in summary.early_stops
            ],
        },
        "episode_correlation": correlation and {"correlation": correlation.correlation, "pairs": correlation.pairs},
    }
