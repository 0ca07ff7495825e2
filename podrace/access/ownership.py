"""Decides which tournaments a caller may read and change. Pure functions.

Operators, the orchestrator, and a policy server without a namespace reach every tournament. A pod reaches what its
token is bound to (podrace.access.rules).
For all other callers:

- A token that is bound to a tournament reaches that one, as far as its role allows.
- The owner of a tournament may change it. An owner is a name in a namespace: `alice` in two namespaces is two owners.
- Members of a named namespace may read each other's tournaments. There is no sharing without a namespace.
- A token of the namespace `*`, which only the key of the mesh signs, may read everything.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from podrace.access.principal import Principal
from podrace.access.rules import AGENT, ALLOWED, EVALUATION, TOURNAMENT, Decision, Resource, Rule
from podrace.access.v1 import access_pb2
from podrace.config import unknown

EVERY_NAMESPACE = "*"
"""Namespace of a caller that reads the tournaments of all namespaces."""
SUGGESTED = 5
"""Largest number of tournaments that a message names."""
_SERVICE_ROLES = frozenset({access_pb2.ROLE_OPERATOR, access_pb2.ROLE_ORCHESTRATOR})
_OWNED = (TOURNAMENT, AGENT, EVALUATION)


@dataclass(frozen=True)
class Ownership:
    """The owner of a tournament."""

    owner: str
    """Name of the caller that created it."""
    namespace: str = ""
    """Namespace of that caller; empty: none."""

    @property
    def display_name(self) -> str:
        """Its name in configurations and messages."""
        return f"{self.namespace}/{self.owner}" if self.namespace else self.owner


class Reach(IntEnum):
    """What a caller may do with a tournament."""

    NOTHING = 0
    """For this caller it does not exist."""
    READ = 1
    CHANGE = 2


class Owners(Protocol):
    """Finds the owners of a service's tournaments.

    if reach(principal, name, owners.ownership_of(name)) >= Reach.READ: ...
    """

    def ownership_of(self, tournament_id: str) -> Ownership | None:
        """Returns the owner of a tournament; None if there is no such tournament."""
        ...

    def tournament_ids(self) -> Iterable[str]:
        """Returns the ids of all tournaments, oldest first."""
        ...


def ownership_for(principal: Principal) -> Ownership:
    """Returns the owner of the tournaments that a caller creates."""
    return Ownership(principal.name, "" if principal.namespace == EVERY_NAMESPACE else principal.namespace)


def is_restricted(principal: Principal) -> bool:
    """Whether a caller may reach some tournaments only, by their owners."""
    if principal.pod_id or access_pb2.ROLE_VIEWER not in principal.roles:
        return False
    if access_pb2.ROLE_POLICY_SERVER in principal.roles and not principal.namespace:
        return False
    return principal.roles.isdisjoint(_SERVICE_ROLES)


def reach(principal: Principal, tournament_id: str, ownership: Ownership | None) -> Reach:
    """Decides what a caller may do with a tournament, as far as its role allows it.

    Args:
        principal: The caller.
        tournament_id: The tournament.
        ownership: Its owner; None: there is no such tournament.
    """
    if not is_restricted(principal):
        return Reach.CHANGE
    if ownership is None:
        return Reach.NOTHING
    if principal.tournament_id:
        return Reach.CHANGE if principal.tournament_id == tournament_id else Reach.NOTHING
    if ownership == ownership_for(principal):
        return Reach.CHANGE
    shares = bool(principal.namespace) and principal.namespace == ownership.namespace
    return Reach.READ if shares or principal.namespace == EVERY_NAMESPACE else Reach.NOTHING


def decide_owned(
    principal: Principal, rule: Rule, resource: Resource, ownership_of: Callable[[str], Ownership | None]
) -> Decision:
    """Decides whether a call is allowed by the ownership of its resource; `rules.decide` has already allowed it.

    Args:
        principal: The caller.
        rule: Rule of the method.
        resource: What the call concerns.
        ownership_of: As Owners.ownership_of.
    """
    if resource.kind not in _OWNED or not is_restricted(principal):
        return ALLOWED
    ownership = ownership_of(resource.tournament_id)
    found = reach(principal, resource.tournament_id, ownership)
    if found is Reach.NOTHING:
        return Decision(False, f"{principal.name} may not see it", hidden=True)
    if found is Reach.READ and rule.changes and ownership:
        return Decision(
            False,
            f"tournament {resource.tournament_id} belongs to {ownership.owner}: {principal.name} may read it, and only"
            " its owner or an operator may change it",
        )
    return ALLOWED


def unknown_tournament(tournament_id: str, known: Sequence[str]) -> str:
    """Returns the message for a tournament that does not exist, or that the caller may not see.

    Args:
        tournament_id: The tournament.
        known: Tournaments that the caller may see, oldest first; the message names the most similar or the newest ones.
    """
    named = difflib.get_close_matches(tournament_id, known, n=1) or known[-SUGGESTED:]
    return unknown("tournament_id", "tournament", tournament_id, named)


def visible(principal: Principal, owners: Owners) -> frozenset[str] | None:
    """Returns the tournaments that a caller may read; None: all."""
    if not is_restricted(principal):
        return None
    return frozenset(
        name for name in owners.tournament_ids() if reach(principal, name, owners.ownership_of(name)) >= Reach.READ
    )
