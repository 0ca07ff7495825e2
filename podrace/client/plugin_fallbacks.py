"""Counts how often the built-in component replaced a failing plugin of a tournament.

A result is therefore never attributed to a plugin that did not run. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_UNSPECIFIED, Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class PluginFallbacks:
    """How often the built-in component replaced one plugin."""

    part: str
    """`generator`, `updater` or `evaluator`."""
    address: str
    """Address of the plugin, as in the specification."""
    times: int
    """Decisions that the built-in component made instead."""
    of: int
    """All decisions of this kind."""
    noun: str
    """What was decided: agent, candidate, score."""
    last: str
    """Reason of the last fallback."""


def named_plugins(spec: TournamentSpec) -> dict[str, str]:
    """Returns the addresses of the plugins that a specification names, by part."""
    named = {
        "generator": spec.evolution.generator,
        "updater": spec.evolution.updater,
        "evaluator": spec.evaluation.evaluator,
    }
    return {part: address for part, address in named.items() if address}


def count_fallbacks(
    spec: TournamentSpec, agents: Iterable[Agent], submissions: Iterable[Candidate]
) -> list[PluginFallbacks]:
    """Counts the fallbacks of each plugin; omits plugins without fallbacks.

    Args:
        spec: Specification of the tournament.
        agents: All agents of the tournament by number.
        submissions: All submitted candidates in order of arrival.
    """
    judged = list(submissions)
    opinions = [one.opinion_reason if one.opinion == OPINION_UNSPECIFIED else "" for one in judged]
    decisions = {
        "generator": ("agent", [agent.generator_fault for agent in agents]),
        "updater": ("candidate", opinions),
        "evaluator": ("score", [one.evaluator_fault for one in judged]),
    }
    found = []
    for part, address in named_plugins(spec).items():
        noun, all_faults = decisions[part]
        faults = [fault for fault in all_faults if fault]
        if faults:
            last = _without_name(faults[-1], part, address)
            found.append(PluginFallbacks(part, address, len(faults), len(all_faults), noun, last))
    return found


def _without_name(fault: str, part: str, address: str) -> str:
    for name in (f"the {part} {address} ", f"{part} {address}: "):
        fault = fault.removeprefix(name)
    return fault
