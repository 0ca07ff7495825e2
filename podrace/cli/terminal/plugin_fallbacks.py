"""Describes how often built-in components replaced plugins, in one line each. Pure."""

from collections.abc import Sequence

from podrace.cli.terminal import formats
from podrace.client.plugin_fallbacks import PluginFallbacks
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def describe_fallbacks(fallbacks: PluginFallbacks) -> str:
    """Returns one line about the fallbacks of one plugin."""
    of = formats.things(fallbacks.of, fallbacks.noun)
    times = formats.count(fallbacks.times)
    return (
        f"{fallbacks.part} {fallbacks.address}: the built-in {fallbacks.part} was used for {times} of {of}; "
        f"{fallbacks.last}"
    )


def built_in_scores_note(candidates: Sequence[Candidate], tournament_id: str) -> str:
    """Returns a note about the agents that the built-in evaluator scored instead of the plugin; empty if none."""
    agents = [one.agent_id for one in candidates if one.evaluator_fault]
    if not agents:
        return ""
    names = formats.short_all(agents, tournament_id)
    return f"scored by the built-in evaluator instead of the plugin, and ranked after all others: {names}"
