"""Defines the claims of tokens that identify a caller, and turns them into principals."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from podrace.access.known_tokens import KnownTokens
from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME, Principal, role_name, roles_with_included
from podrace.access.v1 import access_pb2
from podrace.errors import Unauthenticated

AUDIENCE = "podrace"
"""Audience of tokens for the orchestrator, the leaderboard and pods."""
SERVICE_TOKEN_SECONDS = 600.0
"""Lifetime of the token of a service, which is renewed after half of it."""
POD_TOKEN_SECONDS = 900.0
"""Shortest lifetime of the token of a pod, which is renewed with its lease."""
LAST_PUBLICATION_SECONDS = 300.0
"""Time in which a pod that has waited for the orchestrator for too long publishes its agent and reports it."""
POD_PREFIX = "pod/"


def claims_of(
    name: str,
    roles: Iterable[int],
    *,
    expire_time: float,
    namespace: str = "",
    tournament_id: str = "",
    audience: str = AUDIENCE,
) -> dict[str, Any]:
    """Returns the claims of a token.

    Args:
        name: Subject; `pod/ID` for a pod.
        roles: Values of the contract's Role.
        expire_time: Seconds since 1970.
        namespace: Namespace of a person.
        tournament_id: Tournament that the holder is bound to; empty: none.
        audience: Who may accept the token.
    """
    claims = {
        "aud": audience,
        "sub": name,
        "exp": expire_time,
        "roles": [role_name(role) for role in sorted(roles)],
        "namespace": namespace,
        "tournament": tournament_id,
    }
    return {key: value for key, value in claims.items() if value}


def principal_of(claims: Mapping[str, Any]) -> Principal:
    """Returns the principal that the verified claims of a token describe.

    Raises:
        Unauthenticated: It names a role that does not exist, or the role of a pod but no pod.
    """
    name, names = str(claims["sub"]), claims.get("roles", [])
    if not isinstance(names, list) or not set(names) <= ROLES_BY_NAME.keys():
        raise Unauthenticated(f"the token of {name} has unknown roles; get another one")
    roles = frozenset(ROLES_BY_NAME[each] for each in names)
    pod_id = name.removeprefix(POD_PREFIX) if name.startswith(POD_PREFIX) else ""
    if roles & {access_pb2.ROLE_POD_LEADER, access_pb2.ROLE_POD_ROLE} and not pod_id:
        raise Unauthenticated(f"the token of {name} has the role of a pod, but names no pod; get another one")
    return Principal(
        name,
        roles_with_included(roles),
        namespace=str(claims.get("namespace", "")),
        pod_id=pod_id,
        tournament_id=str(claims.get("tournament", "")),
        via="token",
        expire_time=float(claims["exp"]),
    )


def outlasting_silence(lifetime_seconds: float, orphan_seconds: float) -> float:
    """Returns the lifetime of tokens that are renewed after half of it, for pods without an answer to renew them.

    Args:
        lifetime_seconds: Shortest lifetime.
        orphan_seconds: How long a pod waits for an answer before it publishes and exits.
    """
    return max(lifetime_seconds, 2.0 * (orphan_seconds + LAST_PUBLICATION_SECONDS))


def pod_token(key: MeshKey, pod_id: str, tournament_id: str, expire_time: float) -> str:
    """Returns the token of the leader of a pod.

    Args:
        key: Key of the mesh.
        pod_id: The pod.
        tournament_id: Its tournament; empty for a pod that works for any.
        expire_time: Seconds since 1970.
    """
    return key.sign(pod_claims(pod_id, tournament_id, expire_time))


def pod_claims(pod_id: str, tournament_id: str, expire_time: float) -> dict[str, Any]:
    """Returns the claims of the token of the leader of a pod; arguments as for pod_token."""
    roles = {access_pb2.ROLE_POD_LEADER}
    return claims_of(f"{POD_PREFIX}{pod_id}", roles, tournament_id=tournament_id, expire_time=expire_time)


class PodTokens:
    """Makes the tokens of pods; without a key, pods get none and are identified in another way.

    tokens = PodTokens(key)
    token = tokens.first("race-1-p3", "race-1")                 # when the pod is launched
    response.pod_token = tokens.renewed(current_principal())    # with its answers
    """

    def __init__(
        self,
        key: MeshKey | None,
        now: Callable[[], float] = time.time,
        known: KnownTokens | None = None,
        lifetime_seconds: float = POD_TOKEN_SECONDS,
    ) -> None:
        """Creates the source.

        Args:
            key: Key of the mesh; None: pods get no tokens.
            now: Returns the seconds since 1970.
            known: Remembers the tokens, so that the service need not verify signatures that it made itself.
            lifetime_seconds: Lifetime of the tokens.
        """
        self._key, self._now, self._known, self._lifetime_seconds = key, now, known, lifetime_seconds

    def first(self, pod_id: str, tournament_id: str, lifetime_seconds: float | None = None) -> str:
        """Returns the token that a pod starts with; empty without a key.

        Args:
            pod_id: The pod.
            tournament_id: Its tournament.
            lifetime_seconds: Time in which the pod must start and make its first call; None: as for other tokens.
        """
        if self._key is None:
            return ""
        lifetime_seconds = self._lifetime_seconds if lifetime_seconds is None else lifetime_seconds
        return self._issued(self._key, pod_id, tournament_id, self._now() + lifetime_seconds)

    def renewed(self, principal: Principal | None) -> str:
        """Returns a new token for the calling pod; empty without one, or while over half of its lifetime remains."""
        if self._key is None or principal is None or not principal.pod_id:
            return ""
        now = self._now()
        if principal.expire_time > now + self._lifetime_seconds / 2:
            return ""
        return self._issued(self._key, principal.pod_id, principal.tournament_id, now + self._lifetime_seconds)

    def _issued(self, key: MeshKey, pod_id: str, tournament_id: str, expire_time: float) -> str:
        claims = pod_claims(pod_id, tournament_id, expire_time)
        token = key.sign(claims)
        if self._known:
            self._known.keep(token, principal_of(claims), expire_time)
        return token


class RenewedToken:
    """The token of a pod, replaced by what the orchestrator sends; a TokenSource."""

    def __init__(self, token: str) -> None:
        """Creates the source with the first token; empty: none."""
        self._token = token

    def __call__(self) -> str:
        """Returns the token to send with the next call."""
        return self._token

    def renew(self, token: str) -> None:
        """Replaces the token; an empty one leaves it unchanged."""
        self._token = token or self._token


class OwnPodToken:
    """The token of a pod that a user starts on the machine of the services, signed with the user's own key.

    It is a TokenSource. Such a pod can do no more than its user, who holds the key.
    """

    def __init__(self, key: MeshKey, pod_id: str, now: Callable[[], float] = time.time) -> None:
        """Creates the source.

        Args:
            key: Key of the mesh.
            pod_id: The pod; it works for any tournament.
            now: Returns the seconds since 1970.
        """
        self._key, self._pod_id, self._now = key, pod_id, now
        self._token, self._renew_time = "", 0.0

    def __call__(self) -> str:
        """Returns the token to send with the next call."""
        now = self._now()
        if now >= self._renew_time:
            self._token = pod_token(self._key, self._pod_id, "", now + POD_TOKEN_SECONDS)
            self._renew_time = now + POD_TOKEN_SECONDS / 2
        return self._token

    def renew(self, token: str) -> None:
        """Ignored: this pod signs its tokens itself."""


class ServiceToken:
    """The token of a service, signed again when half of its lifetime has passed; a TokenSource."""

    def __init__(self, key: MeshKey, role: int, now: Callable[[], float] = time.time) -> None:
        """Creates the source.

        Args:
            key: Key of the mesh.
            role: Role of the service.
            now: Returns the seconds since 1970.
        """
        self._key, self._role, self._now = key, role, now
        self._token, self._renew_time = "", 0.0

    def __call__(self) -> str:
        """Returns the token to send with the next call."""
        now = self._now()
        if now >= self._renew_time:
            claims = claims_of(role_name(self._role), {self._role}, expire_time=now + SERVICE_TOKEN_SECONDS)
            self._token, self._renew_time = self._key.sign(claims), now + SERVICE_TOKEN_SECONDS / 2
        return self._token
