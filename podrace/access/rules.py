"""Reads the rule of each method from the contract, and decides whether a caller may make a call. Pure functions."""

import functools
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions

from podrace.access.principal import Principal, role_name
from podrace.access.v1 import access_pb2
from podrace.access.v1.access_pb2 import Resource as ResourceKind

NONE, TOURNAMENT, AGENT, EVALUATION, ASSIGNMENT, POD = (
    access_pb2.RESOURCE_NONE,
    access_pb2.RESOURCE_TOURNAMENT,
    access_pb2.RESOURCE_AGENT,
    access_pb2.RESOURCE_EVALUATION,
    access_pb2.RESOURCE_ASSIGNMENT,
    access_pb2.RESOURCE_POD,
)
PUBLIC_SERVICES = frozenset({"grpc.health.v1.Health"})
"""Services of other contracts that any caller may use: health probes present no credentials, and learn little."""
VIEWED_SERVICES = frozenset({"grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"})
"""Services of other contracts that viewers may call."""
REMEMBERED = 20_000
"""Number of ids whose tournament is cached."""

_PARTS: dict[int, re.Pattern[str]] = {
    AGENT: re.compile(r"(.+)-a\d+"),
    EVALUATION: re.compile(r"(.+)-e\d+"),
    ASSIGNMENT: re.compile(r"(.+)-[ae]\d+\.\d+"),
}


@dataclass(frozen=True)
class Rule:
    """Who may call one method."""

    method: str
    """`/package.Service/Method`."""
    roles: frozenset[int]
    """Roles that may call it; empty: it is always refused."""
    resource: int = NONE
    """Value of the contract's Resource."""
    path: tuple[str, ...] = ()
    """Path of the request's field that names the resource."""
    public: bool = False
    """Whether the method needs no credentials."""
    changes: bool = True
    """Whether a call may change something."""


class Resource(NamedTuple):
    """The resource that a call concerns. A tuple, because it is cheap to create and each call creates one or two."""

    kind: int = NONE
    """Value of the contract's Resource."""
    id: str = ""
    """Its id; empty if the request names none, for instance for a list of all."""
    tournament_id: str = ""
    """Tournament that it belongs to; empty if the id does not show it."""
    pod_id: str = ""
    """Pod that it belongs to: the pod itself, or the holder of an assignment. Empty if unknown."""


@dataclass(frozen=True)
class Decision:
    """Whether a call is allowed, and why not."""

    allowed: bool
    reason: str = ""
    """For the audit log, and for the caller unless `hidden`."""
    hidden: bool = False
    """Whether to answer as if the resource did not exist."""


ALLOWED = Decision(True)


@functools.cache
def rule_of(method: str) -> Rule:
    """Returns the rule of a method, `/package.Service/Method`. One without a rule in the contract gets no roles."""
    service, _, name = method.removeprefix("/").rpartition("/")
    if service in PUBLIC_SERVICES:
        return Rule(method, frozenset(), public=True, changes=False)
    if service in VIEWED_SERVICES:
        return Rule(method, frozenset({access_pb2.ROLE_VIEWER}), changes=False)
    try:
        found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    except KeyError:
        return Rule(method, frozenset())
    options = found.GetOptions()
    rule = options.Extensions[access_pb2.access]
    return Rule(
        method,
        frozenset(rule.roles),
        rule.resource,
        tuple(rule.field.split(".")) if rule.field else (),
        changes=options.idempotency_level != MethodOptions.NO_SIDE_EFFECTS,
    )


def resource_of(rule: Rule, request: Any, *, own_pod_id: str = "") -> Resource:
    """Returns what a request concerns, as far as the request and the ids in it say.

    Args:
        rule: Rule of the method.
        request: The request; ignored if the rule names no field of it.
        own_pod_id: Pod that serves the method; empty if the server is not a pod.
    """
    if rule.resource == NONE:
        return Resource()
    if not rule.path:
        return Resource(POD, own_pod_id, pod_id=own_pod_id)
    name = request
    for part in rule.path:
        name = getattr(name, part)
    if not name and rule.resource != TOURNAMENT:
        return Resource(TOURNAMENT, id := getattr(request, "tournament_id", ""), id)
    if rule.resource == POD:
        return Resource(POD, name, pod_id=name)
    return Resource(rule.resource, name, _tournament_of(rule.resource, name))


@functools.lru_cache(maxsize=REMEMBERED)
def _tournament_of(kind: int, name: str) -> str:
    if kind == TOURNAMENT:
        return name
    found = _PARTS[kind].fullmatch(name)
    return found[1] if found else ""


def decide_role(principal: Principal, rule: Rule) -> Decision:
    """Decides whether a caller may call a method at all, whatever the request."""
    if not rule.roles:
        return Decision(False, f"{rule.method} has no access rule in its contract, so it is always refused")
    if principal.roles.isdisjoint(rule.roles):
        needed = " or ".join(role_name(role) for role in sorted(rule.roles))
        held = ", ".join(role_name(role) for role in sorted(principal.roles)) or "none"
        return Decision(False, f"{principal.name} has the role {held}; {rule.method} needs {needed}")
    return ALLOWED


def decide(principal: Principal, rule: Rule, resource: Resource) -> Decision:
    """Decides whether a caller may make a call.

    Args:
        principal: The caller.
        rule: Rule of the method.
        resource: What the call concerns.
    """
    if not (by_role := decide_role(principal, rule)).allowed:
        return by_role
    bound = principal.tournament_id
    if bound and resource.tournament_id and resource.tournament_id != bound:
        return Decision(False, f"{principal.name} is bound to {bound}", hidden=True)
    if not principal.pod_id or resource.pod_id == principal.pod_id:
        return ALLOWED
    if resource.kind == POD:
        return Decision(False, f"{principal.name} may not act for pod {resource.pod_id!r}")
    if resource.kind == ASSIGNMENT and resource.pod_id:
        return Decision(False, f"pod {resource.pod_id!r} holds it", hidden=True)
    return ALLOWED


def kind_name(kind: int) -> str:
    """Returns the name of a kind of resource, for instance `tournament`."""
    return ResourceKind.Name(ResourceKind.ValueType(kind)).removeprefix("RESOURCE_").lower()
