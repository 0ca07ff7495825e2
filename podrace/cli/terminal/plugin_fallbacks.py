"""Says where the house stood in for a custom part: no result passes for the work of one that never ran. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from podrace.cli.terminal import formats
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_UNSPECIFIED, Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class Unheard:
    """A custom part that the house stood in for."""

    part: str
    """`generator`, `updater` or `evaluator`."""
    address: str
    """As the specification names it."""
    times: int
    """So often."""
    of: int
    """Of so many decisions."""
    noun: str
    """What was decided: agent, candidate, score."""
    last: str
    """Why, the last time."""

    @property
    def line(self) -> str:
        """For a person."""
        of = formats.things(self.of, self.noun)
        return f"{self.part} {self.address}: the house stood in for {formats.count(self.times)} of {of}; {self.last}"


def named_parts(spec: TournamentSpec) -> dict[str, str]:
    """The custom parts of a specification with their addresses."""
    named = {
        "generator": spec.evolution.generator,
        "updater": spec.evolution.updater,
        "evaluator": spec.evaluation.evaluator,
    }
    return {part: address for part, address in named.items() if address}


def unheard(spec: TournamentSpec, agents: Iterable[Agent], submissions: Iterable[Candidate]) -> list[Unheard]:
    """Which custom parts the house stood in for, how often, and why the last time.

    Args:
        spec: Of the tournament.
        agents: All of it, by number.
        submissions: All to its board, by arrival.
    """
    judged = list(submissions)
    opinions = [one.opinion_reason if one.opinion == OPINION_UNSPECIFIED else "" for one in judged]
    decisions = {
        "generator": ("agent", [agent.generator_fault for agent in agents]),
        "updater": ("candidate", opinions),
        "evaluator": ("score", [one.evaluator_fault for one in judged]),
    }
    found = []
    for part, address in named_parts(spec).items():
        noun, faults = decisions[part]
        told = [fault for fault in faults if fault]
        if told:
            last = _without_name(told[-1], part, address)
            found.append(Unheard(part, address, len(told), len(faults), noun, last))
    return found


def _without_name(fault: str, part: str, address: str) -> str:
    for name in (f"the {part} {address} ", f"{part} {address}: "):
        fault = fault.removeprefix(name)
    return fault


def scored_by_the_house(candidates: Sequence[Candidate], tournament_id: str) -> str:
    """Which agents of a board another than the tournament's evaluator scored; empty if it scored all."""
    agents = [one.agent_id for one in candidates if one.evaluator_fault]
    if not agents:
        return ""
    names = formats.short_all(agents, tournament_id)
    return f"scored by its pod's own evaluator, not the tournament's, and so after all others: {names}"
