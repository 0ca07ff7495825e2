"""What a tournament that starts from an agent of another one has to have in common with it. Pure.

refusal = malformed(spec.evolution)              # what the specification alone shows
refusal = mismatch(spec, ancestor_spec)          # what the two together show
"""

import re
from collections.abc import Mapping

from google.protobuf.struct_pb2 import Struct

from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, TournamentSpec

KEY = "evolution.ancestor_agent_id"
AGENT_ID = re.compile(r"(.+)-a\d+")
SHAPING: Mapping[str, tuple[str, ...]] = {"stocks": ("tickers", "layout")}
"""Options of simulators that shape observations and actions. Not all can be known here: a pod refuses the rest."""


def malformed(evolution: EvolutionSpec) -> str:
    """Why the ancestor cannot be an agent's id; empty if it can, or there is none."""
    if not evolution.ancestor_agent_id or AGENT_ID.fullmatch(evolution.ancestor_agent_id):
        return ""
    return f"{KEY} = {evolution.ancestor_agent_id!r}: expected an agent's id, such as 'cartpole-abc123-a7'"


def tournament_of(agent_id: str) -> str:
    """The tournament that an agent belongs to, by its id; empty for what is no agent's id."""
    match = AGENT_ID.fullmatch(agent_id)
    return match[1] if match else ""


def mismatch(spec: TournamentSpec, ancestor_spec: TournamentSpec) -> str:
    """What two tournaments do not have in common although the files of one are to fit the other; empty if nothing.

    Args:
        spec: Of the tournament that starts from an agent.
        ancestor_spec: Of that agent's tournament.
    """
    where = f"{KEY} = {spec.evolution.ancestor_agent_id!r}"
    here, there = spec.environment, ancestor_spec.environment
    if here.id != there.id:
        return (
            f"{where}: was trained on {there.id!r}, and environment.id = {here.id!r}: observations and actions differ"
        )
    for name in SHAPING.get(here.id, ()):
        if _option(here.options, name) != _option(there.options, name):
            return (
                f"{where}: was trained with environment.options.{name} = {_option(there.options, name)!r}, not"
                f" {_option(here.options, name)!r}: observations and actions differ"
            )
    return ""


def _option(options: Struct, name: str) -> object:
    value = dict(options).get(name)
    return value if value is None or isinstance(value, str | float | bool) else list(value)
