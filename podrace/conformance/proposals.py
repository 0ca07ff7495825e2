"""Judges proposals and judgements by the rules at their fields. Pure."""

import math
from collections.abc import Callable, Iterator

from google.protobuf.struct_pb2 import Struct, Value

from podrace.errors import InvalidArgument
from podrace.evolution.v1.evolution_pb2 import (
    ChildProposal,
    JudgeCandidateResponse,
    ProposeAgentRequest,
    ProposeAgentResponse,
)
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_ACCEPT, OPINION_BY_RANK, OPINION_REFUSE
from podrace.specification.catalog import Hyperparameter
from podrace.specification.hyperparameter_checks import check_value, check_within
from podrace.specification.hyperparameters import declared_hyperparameters

LARGEST_BYTES = 65536
LONGEST_REASON = 300
OPINIONS = (OPINION_ACCEPT, OPINION_REFUSE, OPINION_BY_RANK)
Problems = Iterator[tuple[str, str]]
"""Names of violated requirements, each with the problem."""


def of_proposal(request: ProposeAgentRequest, answer: ProposeAgentResponse) -> Problems:
    """Yields what is wrong with a proposal."""
    yield from _of_any(answer.ByteSize(), answer.reason)
    chosen = answer.WhichOneof("proposal")
    if chosen is None:
        yield "proposal-set", f"neither fresh nor child is set, with {len(request.candidates)} candidates"
    elif chosen == "child":
        yield from _of_child(request, answer.child)
    else:
        name = answer.fresh.algorithm
        if name and name not in request.spec.algorithms:
            yield "fresh-algorithm", f"fresh.algorithm = {name[:80]!r}: the specification has {_names(request)}"
            return
        # Without a name the turn decides: the values must fit one of the algorithms.
        names = [name] if name else sorted(request.spec.algorithms)
        found = [list(_of_values(request, one, answer.fresh.hyperparameters, "fresh")) for one in names]
        yield from min(found, key=len)


def _names(request: ProposeAgentRequest) -> str:
    return ", ".join(sorted(request.spec.algorithms))


def _of_child(request: ProposeAgentRequest, child: ChildProposal) -> Problems:
    parents = {ranked.candidate.candidate_id: ranked.agent for ranked in request.candidates}
    parent = parents.get(child.candidate_id)
    if parent is None:
        yield "parent", f"child.candidate_id = {child.candidate_id[:80]!r} is none of {len(parents)} candidates"
        return
    if child.algorithm not in ("", parent.algorithm):
        yield "child-algorithm", f"child.algorithm = {child.algorithm[:80]!r}, of the parent {parent.algorithm!r}"
    yield from _of_values(request, parent.algorithm, child.hyperparameters, "child")
    declared = _declared(request, parent.algorithm)
    for key, value in sorted(child.hyperparameters.fields.items()):
        changed = value != parent.hyperparameters.fields[key]
        if key in declared and declared[key].structural and changed:
            yield "structure", f"child.hyperparameters.{key} is not that of the parent"


def _declared(request: ProposeAgentRequest, name: str) -> dict[str, Hyperparameter]:
    return declared_hyperparameters(name, request.spec.algorithms[name], request.spec.environment)


def _of_values(request: ProposeAgentRequest, name: str, given: Struct, what: str) -> Problems:
    declared, spec = _declared(request, name), request.spec.algorithms[name]
    for key, value in sorted(given.fields.items()):
        where = f"{what}.hyperparameters.{key[:80]}"
        if key not in declared:
            yield "known-hyperparameters", f"{where}: {name} has no such hyperparameter"
        elif _kind(value) != _kind(spec.hyperparameters[key].value):
            yield "known-hyperparameters", f"{where} is a {_kind(value)} instead of a {_kind_of(request, name, key)}"
        else:
            checks: list[Callable[[], None]] = [
                lambda key=key, value=value, where=where: check_value(value, declared[key], where),  # type: ignore[misc]
                lambda key=key, value=value, where=where: check_within(value, spec.hyperparameters[key], where),  # type: ignore[misc]
            ]
            yield from _failed(checks)


def _failed(checks: list[Callable[[], None]]) -> Problems:
    """Yields the first failure."""
    for check in checks:
        try:
            check()
        except InvalidArgument as error:
            yield "within-range", error.message
            return


def _kind(value: Value) -> str:
    return str(value.WhichOneof("kind")).removesuffix("_value")


def _kind_of(request: ProposeAgentRequest, name: str, key: str) -> str:
    return _kind(request.spec.algorithms[name].hyperparameters[key].value)


def of_judgement(answer: JudgeCandidateResponse) -> Problems:
    """Yields what is wrong with a judgement."""
    yield from _of_any(answer.ByteSize(), answer.reason)
    if answer.opinion not in OPINIONS:
        yield "opinion", f"opinion = {answer.opinion}"
    if answer.HasField("rank_score") and not math.isfinite(answer.rank_score):
        yield "rank-score", f"rank_score = {answer.rank_score}"


def _of_any(size: int, reason: str) -> Problems:
    if size > LARGEST_BYTES:
        yield "size", f"an answer has {size} bytes"
    if len(reason) > LONGEST_REASON or "\n" in reason:
        lines = reason.count("\n") + 1
        yield "reason", f"a reason has {len(reason)} characters on {lines} line{'s' if lines > 1 else ''}"
