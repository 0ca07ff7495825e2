"""Checks every call to a server: who the caller is, and whether the access rule of the method allows the call."""

import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from google.protobuf.message import Message

from podrace.access.authenticators.anyone import AnyoneAuthenticator
from podrace.access.authenticators.unix_socket import UnixSocketAuthenticator
from podrace.access.call_rates import CallRates
from podrace.access.credentials import Authenticator, ConnectionCheck, Credentials
from podrace.access.known_tokens import KEEP_SECONDS, KnownTokens
from podrace.access.open_streams import OpenPublicStreams, OpenStreams
from podrace.access.ownership import Owners, decide_owned, unknown_tournament, visible
from podrace.access.principal import Principal
from podrace.access.rules import (
    AGENT,
    ASSIGNMENT,
    POD,
    TOURNAMENT,
    Decision,
    Resource,
    Rule,
    decide,
    decide_role,
    kind_name,
    resource_of,
)
from podrace.errors import AGENT_UNKNOWN, NotFound, PermissionDenied, PodraceError, Unauthenticated

HolderOf = Callable[[str], str]
"""Returns the pod that holds an assignment now; empty if the assignment is unknown or no pod holds it any more."""
Audit = Callable[[Principal | None, str, Rule, Resource, Decision], None]
"""Receives the caller (None: unknown), its address, the rule, the resource of the call, and the decision."""


class Guard:
    """Decides about the calls of one server.

    principal = await guard.authenticate(credentials, rule)
    guard.check_role(principal, credentials.peer, rule, request)
    guard.check(principal, credentials.peer, rule, request)     # raises unless the call is allowed
    """

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        *,
        pod_id: str = "",
        holder_of: HolderOf | None = None,
        owners: Owners | None = None,
        scoped: Container[str] = (),
        audit: Audit | None = None,
        now: Callable[[], float] = time.time,
        rates: CallRates | None = None,
        streams: OpenStreams | None = None,
        known: KnownTokens | None = None,
    ) -> None:
        """Creates the guard.

        Args:
            authenticators: Tried in order; the first that identifies the caller decides. Empty: every call is refused.
            pod_id: Pod that the server belongs to; empty for a service.
            holder_of: Finds the holder of an assignment; None: this server has no assignments.
            owners: Finds the owner of each tournament; None: owners are not checked here.
            scoped: Methods (`/package.Service/Method`) that check themselves which tournaments the caller may see. Only
                these methods receive calls that concern a hidden tournament.
            audit: Receives every refusal, and every decision about a call that may change something.
            now: Returns the seconds since 1970.
            rates: Limits how many calls a caller makes; None: there is no limit.
            streams: Limits how many streams a caller has open; None: there is no limit.
            known: Tokens that were verified before; None: none.
        """
        self._rates, self._streams, self._public_streams = rates, streams, OpenPublicStreams()
        self._authenticators, self._pod_id, self.now = tuple(authenticators), pod_id, now
        self._holder_of, self._audit = holder_of, audit
        self._owners, self._scoped = owners, scoped
        self._connection_checks = [
            each.check_connection for each in self._authenticators if isinstance(each, ConnectionCheck)
        ]
        self._known = known or KnownTokens()

    @property
    def checks_connections(self) -> bool:
        """Whether the properties of a connection matter even if the caller presents a token."""
        return bool(self._connection_checks)

    async def authenticate(self, credentials: Credentials, rule: Rule) -> Principal:
        """Returns the caller.

        Raises:
            Unauthenticated: No authenticator knows the caller, or its credentials are invalid.
            ResourceExhausted: The caller makes too many calls.
        """
        try:
            principal = await self._principal(credentials, rule.method)
        except PodraceError as error:
            if self._audit:
                self._audit(None, credentials.peer, rule, Resource(), Decision(False, error.message))
            raise
        if self._rates:
            # Not audited: a record of each call would be the flood that this limits.
            self._rates.check(principal)
        return principal

    async def still_admits(self, credentials: Credentials, rule: Rule) -> bool:
        """Whether the credentials of a call that runs would still identify its caller."""
        try:
            await self._principal(credentials, rule.method)
        except Unauthenticated:
            return False
        except PodraceError:
            # Their issuer does not answer: the caller was admitted once.
            return True
        return True

    async def _principal(self, credentials: Credentials, method: str) -> Principal:
        for check in self._connection_checks:
            # Before a token that is known: the certificate may have been revoked since.
            check(credentials)
        token, now = credentials.token, self.now()
        if token and (found := self._known.find(token, now)):
            return found
        if not token.isascii():
            raise Unauthenticated(f"{method}: the token has characters that no token has; get another one")
        for authenticator in self._authenticators:
            if found := await authenticator.authenticate(credentials):
                if token:
                    self._known.keep(token, found, now + KEEP_SECONDS)
                return found
        presented = "a token that is not known here" if token else "the caller presented no token"
        raise Unauthenticated(
            f"{method}: {presented}; set PODRACE_TOKEN_FILE or PODRACE_TOKEN to a token of this mesh (podrace token"
            " makes one), or run as the user who runs the service"
        )

    def check_role(self, principal: Principal, peer: str, rule: Rule, request: Any) -> None:
        """Checks that a caller may call a method at all, before its request is checked.

        Raises:
            PermissionDenied: The caller has none of the roles.
        """
        decision = decide_role(principal, rule)
        if decision.allowed:
            return
        if self._audit:
            readable = isinstance(request, Message)
            resource = resource_of(rule, request, own_pod_id=self._pod_id) if readable else Resource()
            self._audit(principal, peer, rule, resource, decision)
        raise PermissionDenied(decision.reason)

    def check(self, principal: Principal, peer: str, rule: Rule, request: Any) -> None:
        """Checks that a caller whose role is allowed may make this call.

        Raises:
            PermissionDenied: The caller acts for another pod.
            NotFound: The caller may not see what the call concerns.
        """
        resource = resource_of(rule, request, own_pod_id=self._pod_id)
        if resource.kind == ASSIGNMENT and principal.pod_id and self._holder_of:
            holder = self._holder_of(resource.id)
            resource = Resource(ASSIGNMENT, resource.id, resource.tournament_id, holder)
        decision = decide(principal, rule, resource)
        if decision.allowed and self._owners:
            decision = decide_owned(principal, rule, resource, self._owners.ownership_of)
        if self._audit and (rule.changes or not decision.allowed):
            self._audit(principal, peer, rule, resource, decision)
        if decision.allowed or (decision.hidden and rule.method in self._scoped):
            return
        if decision.hidden:
            # As the leaderboard answers for an agent that it does not know.
            reason = AGENT_UNKNOWN if resource.kind == AGENT else ""
            raise NotFound(self._absent(principal, resource), reason=reason)
        raise PermissionDenied(decision.reason)

    def open_stream(self, principal: Principal) -> Callable[[], None]:
        """Counts a stream of a caller whose call is allowed, and returns what must be called when it ends.

        Raises:
            ResourceExhausted: The caller has too many streams open.
        """
        return self._streams.open(principal) if self._streams else lambda: None

    def open_public_stream(self, peer: str) -> Callable[[], None]:
        """Counts a stream of a method that needs no credentials, and returns what must be called when it ends.

        Raises:
            ResourceExhausted: The address of the caller has too many streams open.
        """
        return self._public_streams.open(peer)

    def _absent(self, principal: Principal, resource: Resource) -> str:
        """Returns the message for what the caller may not see; it suggests only what the caller may see."""
        if resource.kind != TOURNAMENT or self._owners is None:
            return absent(resource)
        seen = visible(principal, self._owners) or ()
        return unknown_tournament(resource.id, [name for name in self._owners.tournament_ids() if name in seen])

    @classmethod
    def of_unix_socket(cls) -> "Guard":
        """Returns a guard for a server on a Unix socket that only its own user calls."""
        return cls([UnixSocketAuthenticator()])

    @classmethod
    def of_anyone(cls) -> "Guard":
        """Returns a guard that accepts every caller: for a network that is trusted as a whole."""
        return cls([UnixSocketAuthenticator(), AnyoneAuthenticator()])


def absent(resource: Resource) -> str:
    """Returns the message of NOT_FOUND for something that does not exist, or that the caller may not see."""
    if resource.kind == ASSIGNMENT:
        return f"assignment of {resource.id.rpartition('.')[0]!r}: there is no such agent or evaluation"
    if resource.kind == AGENT:
        return f"agent {resource.id!r} was never generated here"
    if resource.kind == POD:
        return f"pod_id {resource.id!r}: there is no such pod"
    kind = kind_name(resource.kind)
    return f"{kind}_id {resource.id!r}: there is no such {kind}"
