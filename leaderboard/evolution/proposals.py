"""Checks the answer of a generator plugin and converts it to the answer of a strategy. Pure.

    answer = adopted(proposal, situation)

Algorithm, parent and every value are checked against the specification, the catalog and the board. Otherwise an agent
that cannot be trained would be noticed only by the pod that gets it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import struct_pb2

from leaderboard.evolution.mutation import describe_changes
from leaderboard.evolution.space import Choices, Space, Value, is_structural, plain, spaces_of
from leaderboard.evolution.strategy import Child, Fresh, Situation
from leaderboard.ranking.board import named
from podrace.config import unknown
from podrace.errors import InvalidArgument
from podrace.evolution.v1.evolution_pb2 import ChildProposal, FreshProposal, ProposeAgentResponse
from podrace.printable import one_line
from podrace.specification.hyperparameter_checks import check_value
from podrace.specification.hyperparameters import declared_hyperparameters


@dataclass(frozen=True)
class Proposal:
    """The result of calling a generator plugin. It is recorded with the agent, and a replay uses the record."""

    answer: ProposeAgentResponse | None
    """The answer, if it was valid when it arrived."""
    failure: str = ""
    """Else what went wrong, beginning with the address of the plugin."""


def adopted(answer: ProposeAgentResponse, situation: Situation) -> Fresh | Child:
    """Converts a proposal.

    Args:
        answer: The proposal.
        situation: What a strategy would receive.

    Raises:
        InvalidArgument: The proposal is invalid; the message has the field, its value and what is expected.
    """
    chosen = answer.WhichOneof("proposal")
    if chosen == "fresh":
        return _fresh(answer.fresh, one_line(answer.reason), situation)
    if chosen == "child":
        return _child(answer.child, one_line(answer.reason), situation)
    raise InvalidArgument("proposal: neither fresh nor child is set")


def _fresh(fresh: FreshProposal, reason: str, situation: Situation) -> Fresh:
    name = fresh.algorithm or situation.turn.algorithm
    if name not in situation.spec.algorithms:
        raise InvalidArgument(unknown("fresh.algorithm", "algorithm", name, situation.spec.algorithms))
    values = _checked(fresh.hyperparameters, name, situation, "fresh.hyperparameters")
    return Fresh(reason or "no reason given", name, hyperparameters=values)


def _child(child: ChildProposal, reason: str, situation: Situation) -> Child:
    parent = next((one for one in situation.board if one.candidate_id == child.candidate_id), None)
    if parent is None:
        raise InvalidArgument(f"child.candidate_id = {child.candidate_id[:80]!r}: is not on the board")
    if child.algorithm not in ("", parent.algorithm):
        raise InvalidArgument(
            f"child.algorithm = {child.algorithm[:80]!r}: {named(parent)} was trained by {parent.algorithm!r}"
        )
    inherited = situation.values_of(parent)
    values = _checked(child.hyperparameters, parent.algorithm, situation, "child.hyperparameters")
    spec = situation.spec.algorithms[parent.algorithm]
    for key, value in values.items():
        if is_structural(parent.algorithm, spec, key) and value != inherited.get(key):
            raise InvalidArgument(
                f"child.hyperparameters.{key} = {value!r}: must not change in a child; expected the parent's"
                f" {inherited.get(key)!r}"
            )
    changes = describe_changes(inherited, inherited | values) or "hyperparameters unchanged"
    return Child(parent, inherited | values, f"{reason or 'no reason given'}; child of {named(parent)}; {changes}")


def _checked(given: struct_pb2.Struct, algorithm: str, situation: Situation, where: str) -> dict[str, Value]:
    """Returns the values by name; raises InvalidArgument for a name or a value that the algorithm does not accept."""
    spec = situation.spec.algorithms[algorithm]
    declared = declared_hyperparameters(algorithm, spec, situation.spec.environment)
    spaces = spaces_of(algorithm, spec)
    values = {}
    for key in sorted(given.fields):
        if key not in declared:
            raise InvalidArgument(unknown(f"{where}.{key[:80]}", "hyperparameter", key[:80], declared))
        values[key] = _plain(given.fields[key], f"{where}.{key}")
        check_value(given.fields[key], declared[key], f"{where}.{key}")
        _check_searched(values[key], spaces, key, f"{where}.{key}")
    return values


def _plain(value: struct_pb2.Value, where: str) -> Value:
    try:
        return plain(value)
    except ValueError:
        raise InvalidArgument(f"{where}: holds a number that is not finite") from None


def _check_searched(value: Value, spaces: Mapping[str, Space], key: str, where: str) -> None:
    space = spaces.get(key)
    if space is None or space.contains(value):
        return
    if isinstance(space, Choices):
        raise InvalidArgument(f"{where} = {value!r}: expected one of {', '.join(map(repr, space.values))}")
    or_extra = "" if space.extra is None else f" or {space.extra:g}"
    raise InvalidArgument(
        f"{where} = {value:g}: expected {space.low:g} to {space.high:g}{or_extra}, the range of the specification"
    )
