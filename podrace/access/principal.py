"""Defines the identity of a caller: its name, its roles, and the pod and tournament that it is bound to."""

import contextvars
import math
from collections.abc import Iterable
from dataclasses import dataclass

from podrace.access.v1 import access_pb2

Role = access_pb2.Role

ALL_ROLES = frozenset(Role.values()) - {access_pb2.ROLE_UNSPECIFIED}
_INCLUDED: dict[int, frozenset[int]] = {
    access_pb2.ROLE_OPERATOR: frozenset({access_pb2.ROLE_USER, access_pb2.ROLE_VIEWER}),
    access_pb2.ROLE_USER: frozenset({access_pb2.ROLE_VIEWER}),
    access_pb2.ROLE_POLICY_SERVER: frozenset({access_pb2.ROLE_VIEWER}),
}
_PREFIX = "ROLE_"


@dataclass(frozen=True)
class Principal:
    """The identity of a caller."""

    name: str
    """For a person a name; for a service or a pod its kind and id, for instance `pod/race-1-p3`."""
    roles: frozenset[int]
    """Values of the contract's Role, with those that they include."""
    namespace: str = ""
    """Namespace of a person; empty: the default namespace."""
    pod_id: str = ""
    """Pod that the caller is bound to; empty: none."""
    tournament_id: str = ""
    """Tournament that the caller is bound to; empty: none."""
    via: str = "anonymous"
    """How the caller was identified: `unix`, `token`, `certificate`, `oidc`, `kubernetes` or `anonymous`."""
    expire_time: float = math.inf
    """Seconds since 1970 at which its credentials become invalid."""


def roles_with_included(roles: Iterable[int]) -> frozenset[int]:
    """Returns roles with those that they include: an operator is also a user, and a user is also a viewer."""
    given = frozenset(roles)
    return given.union(*(_INCLUDED.get(role, frozenset()) for role in given))


def role_name(role: int) -> str:
    """Returns the name of a role in options and messages, for instance `pod-leader`."""
    return Role.Name(access_pb2.Role.ValueType(role)).removeprefix(_PREFIX).lower().replace("_", "-")


ROLES_BY_NAME = {role_name(role): role for role in sorted(ALL_ROLES)}
"""Roles by their names in options."""

_current: contextvars.ContextVar[Principal | None] = contextvars.ContextVar("podrace_principal", default=None)


def current_principal() -> Principal | None:
    """Returns the caller of the call that this task answers; None outside of a call."""
    return _current.get()


def set_current_principal(principal: Principal) -> None:
    """Records the caller of the call that this task answers."""
    _current.set(principal)
