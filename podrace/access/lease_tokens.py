"""Makes and checks lease tokens: only the pod that holds an assignment can renew, complete or submit under it.

The orchestrator signs a token for each assignment and sends it with the assignment. When half of the token's lifetime
has passed, the answer to the next renewal has a new one. The pod sends its token with every call for the assignment. A
token names the assignment, its tournament, its lease epoch and its pod. It is therefore not valid for other work, nor
for a caller that is identified as another pod.

The orchestrator compares a token with the one that it issued, in constant time. After a restart, and for an earlier
token of the same lease, it verifies the signature. The leaderboard has only the public key and verifies signatures.

Without a key, no tokens are issued and none are required: in an embedded mesh, whose sockets only its user can reach.
"""

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from podrace.access.mesh_key import MeshKey, PublicKeys
from podrace.access.principal import Principal
from podrace.errors import PermissionDenied, Unauthenticated

LEASE_AUDIENCE = "podrace-lease"
"""Audience of lease tokens; no method accepts them as the token of a caller."""
LEASE_TOKEN_SECONDS = 3600.0
"""Shortest lifetime of a token; it is renewed with the lease."""
MOST_TOKENS = 100_000
"""Tokens that are kept in memory; the oldest ones are verified again."""
FIELD = "lease_token"


@dataclass(frozen=True)
class HeldLease:
    """The claims of a lease token."""

    assignment_id: str
    """The assignment, which includes the lease epoch."""
    tournament_id: str
    """Its tournament."""
    work_id: str
    """The agent or the evaluation."""
    lease_epoch: int
    """The lease epoch."""
    pod_id: str
    """The pod that holds it."""


def claims_of(lease: HeldLease, expire_time: float) -> dict[str, Any]:
    """Returns the claims of a lease token; `expire_time` is in seconds since 1970."""
    return {
        "aud": LEASE_AUDIENCE,
        "sub": lease.assignment_id,
        "exp": expire_time,
        "tournament": lease.tournament_id,
        "work": lease.work_id,
        "epoch": lease.lease_epoch,
        "pod": lease.pod_id,
    }


def lease_of(claims: dict[str, Any]) -> HeldLease:
    """Returns the lease that verified claims describe."""
    return HeldLease(
        str(claims["sub"]),
        str(claims.get("tournament", "")),
        str(claims.get("work", "")),
        int(claims.get("epoch", 0)),
        str(claims.get("pod", "")),
    )


def why_wrong(lease: HeldLease, caller: Principal | None, **expected: str | int) -> str:
    """Returns why a lease token is not valid for a request; empty if it is.

    Args:
        lease: The claims of the token.
        caller: The caller; if it is bound to a pod, that pod must be the holder.
        **expected: Fields of HeldLease that the request names.
    """
    for name, value in expected.items():
        if getattr(lease, name) != value:
            kind = "agent or evaluation" if name == "work_id" else name.removesuffix("_id").replace("_", " ")
            return f"it belongs to another {kind}"
    if caller is not None and caller.pod_id and caller.pod_id != lease.pod_id:
        return "it was given to another pod"
    return ""


def _refusal(method: str, problem: str) -> PermissionDenied:
    return PermissionDenied(
        f"{method}: {FIELD}: {problem}; send the lease_token of the assignment or of its last renewal"
    )


class LeaseVerifier:
    """Verifies lease tokens with the public key of the mesh.

    verifier.check("SubmitCandidate", request.lease_token, current_principal(), work_id=..., lease_epoch=...)
    """

    def __init__(self, keys: PublicKeys | None, now: Callable[[], float] = time.time) -> None:
        """Creates the verifier.

        Args:
            keys: Public keys of the mesh; None: no token is required.
            now: Returns the seconds since 1970.
        """
        self._keys, self._now = keys, now
        self._verified: OrderedDict[str, tuple[HeldLease, float]] = OrderedDict()

    @property
    def required(self) -> bool:
        """Whether calls need a token."""
        return self._keys is not None

    def check(self, method: str, token: str, caller: Principal | None, **expected: str | int) -> None:
        """Checks that a token belongs to the lease that a request names.

        Args:
            method: Name of the method, for the error.
            token: The token of the request.
            caller: The caller.
            **expected: Fields of HeldLease that the request names.

        Raises:
            PermissionDenied: The token is missing, invalid or expired, or belongs to another lease or pod.
        """
        if self._keys is None:
            return
        if not token:
            raise _refusal(method, "is missing")
        if problem := why_wrong(self._lease(method, token, self._keys), caller, **expected):
            raise _refusal(method, problem)

    def _lease(self, method: str, token: str, keys: PublicKeys) -> HeldLease:
        known = self._verified.get(token)
        if known and self._now() < known[1]:
            return known[0]
        try:
            claims = keys.verify(token, audience=LEASE_AUDIENCE)
            lease, expire_time = lease_of(claims), float(claims["exp"])
        except (Unauthenticated, ValueError, TypeError):
            raise _refusal(method, "is not valid, or has expired") from None
        self._verified[token] = lease, expire_time
        while len(self._verified) > MOST_TOKENS:
            self._verified.popitem(last=False)
        return lease


@dataclass(frozen=True)
class _Issued:
    token: str
    lease: HeldLease
    expire_time: float


class LeaseTokens:
    """Makes lease tokens, and checks those that pods send.

    assignment.lease_token = tokens.of(lease)
    tokens.check("RenewAssignment", request.lease_token, current_principal(), assignment_id, lease_epoch)
    response.lease_token = tokens.renewed(lease)
    """

    def __init__(
        self,
        key: MeshKey | None,
        now: Callable[[], float] = time.time,
        lifetime_seconds: float = LEASE_TOKEN_SECONDS,
    ) -> None:
        """Creates the source.

        Args:
            key: Key of the mesh; None: no tokens are made, and none are required.
            now: Returns the seconds since 1970.
            lifetime_seconds: Lifetime of the tokens.
        """
        self._key, self._now, self._lifetime_seconds = key, now, lifetime_seconds
        self._verifier = LeaseVerifier(key.public if key else None, now)
        self._issued: OrderedDict[str, _Issued] = OrderedDict()

    def of(self, lease: HeldLease) -> str:
        """Returns the token of a lease; empty if there is no key."""
        if self._key is None:
            return ""
        now, issued = self._now(), self._issued.get(lease.assignment_id)
        if issued and issued.lease == lease and now < issued.expire_time - self._lifetime_seconds / 2:
            return issued.token
        expire_time = now + self._lifetime_seconds
        token = self._key.sign(claims_of(lease, expire_time))
        self._issued[lease.assignment_id] = _Issued(token, lease, expire_time)
        self._issued.move_to_end(lease.assignment_id)
        while len(self._issued) > MOST_TOKENS:
            self._issued.popitem(last=False)
        return token

    def renewed(self, lease: HeldLease, token: str) -> str:
        """Returns the token that a pod must send from now on; empty if that is the token that it sent."""
        current = self.of(lease)
        return "" if hmac.compare_digest(current.encode(), token.encode()) else current

    def check(self, method: str, token: str, caller: Principal | None, assignment_id: str, lease_epoch: int) -> None:
        """Checks that a token belongs to an assignment.

        Raises:
            PermissionDenied: The token is missing, invalid or expired, or belongs to another assignment or pod.
        """
        issued = self._issued.get(assignment_id)
        if (
            issued
            and self._now() < issued.expire_time
            and hmac.compare_digest(issued.token.encode(), token.encode())
            and not why_wrong(issued.lease, caller, lease_epoch=lease_epoch)
        ):
            return
        self._verifier.check(method, token, caller, assignment_id=assignment_id, lease_epoch=lease_epoch)

    def forget(self, assignment_id: str) -> None:
        """Drops the token of an assignment that has ended; it remains valid until it expires, but has no use."""
        self._issued.pop(assignment_id, None)
