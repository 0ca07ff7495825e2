"""Checks that a tournament can start from an agent of another tournament (`evolution.ancestor_agent_id`). Pure.

error = malformed(spec.evolution)        # is it the id of an agent?
error = mismatch(spec, ancestor_spec)    # do the environments and the data of the two tournaments fit?
"""

import re
from collections.abc import Mapping

from google.protobuf.struct_pb2 import Struct

from podrace.specification.catalog import simulator_of
from podrace.specification.data_leakage import ancestor_leak
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, TournamentSpec

KEY = "evolution.ancestor_agent_id"
AGENT_ID = re.compile(r"(.+)-a\d+")
SHAPING: Mapping[str, tuple[str, ...]] = {"stocks": ("tickers", "layout")}
"""Options that determine the shape of observations and actions, by simulator. The list is not complete: a pod refuses a
checkpoint of any other shape."""


def malformed(evolution: EvolutionSpec) -> str:
    """Returns why the ancestor is not the id of an agent; empty if it is one or is not set."""
    if not evolution.ancestor_agent_id or AGENT_ID.fullmatch(evolution.ancestor_agent_id):
        return ""
    return f"{KEY} = {evolution.ancestor_agent_id!r}: expected the id of an agent, such as 'cartpole-abc123-a7'"


def tournament_of(agent_id: str) -> str:
    """Returns the tournament id that an agent id contains; empty if the text is not an agent id."""
    match = AGENT_ID.fullmatch(agent_id)
    return match[1] if match else ""


def mismatch(spec: TournamentSpec, ancestor_spec: TournamentSpec) -> str:
    """Returns why a tournament cannot start from an agent of another one; empty if it can.

    The checkpoint files must fit, and the agent must not know the data that the tournament evaluates on.

    Args:
        spec: Specification of the tournament that starts from an agent.
        ancestor_spec: Specification of the tournament of that agent.
    """
    where = f"{KEY} = {spec.evolution.ancestor_agent_id!r}"
    here, there = spec.environment, ancestor_spec.environment
    if here.id != there.id:
        return (
            f"{where}: was trained on {there.id!r}, but environment.id = {here.id!r}: observations and actions differ"
        )
    for name in SHAPING.get(simulator_of(here), ()):
        if _option(here.options, name) != _option(there.options, name):
            return (
                f"{where}: was trained with environment.options.{name} = {_option(there.options, name)!r}, not"
                f" {_option(here.options, name)!r}: observations and actions differ"
            )
    leak = ancestor_leak(spec, ancestor_spec)
    return leak and f"{where}: {leak}"


def _option(options: Struct, name: str) -> object:
    value = dict(options).get(name)
    return value if value is None or isinstance(value, str | float | bool) else list(value)
