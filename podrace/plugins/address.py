"""What a specification can say of its custom parts: a generator or updater of the user's own. Pure.

fill(evolution)                                   # how long an answer may take is set where one is asked for
refusal = misplaced(evolution)                    # a line if something cannot be
address = parse(evolution.generator)              # Imported("mine", "propose") or Served("127.0.0.1:50070")
"""

import re
from dataclasses import dataclass

from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

ANSWER_SECONDS = 5.0
"""How long an answer may take where the specification does not say."""
ANSWER_LIMITS = (0.05, 8.0)
"""Shortest and longest time, seconds. Whoever waits for an agent, or for the judgement of a candidate, waits 10 s."""
EXPECTED = "expected python:module:function or grpc://host:port"

_IMPORTED = re.compile(r"python:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")
_SERVED = re.compile(r"grpc://(?P<target>unix:/[^\s]+|(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5}))")


@dataclass(frozen=True)
class Imported:
    """A function of a Python module."""

    module: str
    function: str


@dataclass(frozen=True)
class Served:
    """A service at an address."""

    target: str
    """`host:port`, or `unix:/path`."""


def parse(address: str) -> Imported | Served | None:
    """What an address names; None if it is none."""
    if found := _IMPORTED.fullmatch(address):
        return Imported(found["module"], found["function"])
    found = _SERVED.fullmatch(address)
    if found and (found["port"] is None or 0 < int(found["port"]) < 65536):
        return Served(found["target"])
    return None


def fill(evolution: EvolutionSpec) -> None:
    """Fills in how long an answer may take, where somebody is asked."""
    if _named(evolution) and not evolution.HasField("answer_duration"):
        evolution.answer_duration.FromNanoseconds(round(ANSWER_SECONDS * 1e9))


def misplaced(evolution: EvolutionSpec) -> str:
    """Says what is wrong with the custom parts of a specification; empty if all is well."""
    named = _named(evolution)
    for part in named:
        address: str = getattr(evolution, part)
        if parse(address) is None:
            return f"evolution.{part} = {address!r}: {EXPECTED}"
    if evolution.HasField("answer_duration"):
        seconds = answer_seconds(evolution)
        if not named:
            return (
                f"evolution.answer_duration = {seconds:g} s: is a setting of evolution.generator and updater; name one"
            )
        low, high = ANSWER_LIMITS
        if not low <= seconds <= high:
            return f"evolution.answer_duration = {seconds:g} s: expected {low:g} s to {high:g} s"
    return ""


def _named(evolution: EvolutionSpec) -> list[str]:
    """Keys of `[evolution]` that name a part."""
    return ["generator"] * evolution.HasField("generator") + ["updater"] * evolution.HasField("updater")


def answer_seconds(evolution: EvolutionSpec) -> float:
    """How long an answer may take."""
    return evolution.answer_duration.ToNanoseconds() / 1e9
