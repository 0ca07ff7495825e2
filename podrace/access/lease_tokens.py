"""Makes and checks the tokens of leases: only the pod that holds an assignment can renew, complete or submit under it.

The orchestrator signs a token for each assignment and sends it with the assignment, and a new one with a renewal when
half of its lifetime has passed. The pod sends it back. A token names the assignment, its tournament, its lease epoch
and its pod, so it is useless for anything else, and for any other pod that can prove its own identity. Its signature
cannot be guessed.

The orchestrator compares a token with the one that it issued, in constant time; after a restart, and for an earlier
token of the same lease, it verifies the signature. The leaderboard has the public key only and verifies signatures.

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
"""Audience of tokens of leases; no method accepts them as the token of a caller."""
LEASE_TOKEN_SECONDS = 3600.0
"""Lifetime of a token; it is renewed with the lease."""
MOST_TOKENS = 100_000
"""Tokens that are kept in memory; the oldest ones are verified again."""
FIELD = "lease_token"


@dataclass(frozen=True)
class HeldLease:
    """What the token of a lease says."""

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
    """Returns the claims of the token of a lease; `expire_time` is in seconds since 1970."""
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
    """Returns what verified claims say."""
    return HeldLease(
        str(claims["sub"]),
        str(claims.get("tournament", "")),
        str(claims.get("work", "")),
        int(claims.get("epoch", 0)),
        str(claims.get("pod", "")),
    )


def why_wrong(lease: HeldLease, caller: Principal | None, **expected: str | int) -> str:
    """Returns why a lease is not that of a request; empty if it is.

    Args:
        lease: What the token says.
        caller: Who calls; a caller that is bound to a pod must be the holder.
        **expected: Fields of HeldLease that the request names.
    """
    for name, value in expected.items():
        if getattr(lease, name) != value:
            return f"it is of another {name.removesuffix('_id').replace('_', ' ')}"
    if caller is not None and caller.pod_id and caller.pod_id != lease.pod_id:
        return "it was given to another pod"
    return ""


def _refusal(method: str, problem: str) -> PermissionDenied:
    return PermissionDenied(
        f"{method}: {FIELD}: {problem}; send the lease_token of the assignment, or the one of its last renewal"
    )


class LeaseVerifier:
    """Verifies the tokens of leases by the public key of the mesh.

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
        """Checks that a token is that of the lease that a request names.

        Args:
            method: Name of the method, for the error.
            token: The token of the request.
            caller: Who calls.
            **expected: Fields of HeldLease that the request names.

        Raises:
            PermissionDenied: The token is missing, invalid or expired, or of another lease or pod.
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
    """Makes the tokens of leases, and checks those that come back.

    assignment.lease_token = tokens.of(lease)
    tokens.check("RenewAssignment", request.lease_token, current_principal(), assignment_id, lease_epoch)
    response.lease_token = tokens.renewed(lease)
    """

    def __init__(self, key: MeshKey | None, now: Callable[[], float] = time.time) -> None:
        """Creates the source.

        Args:
            key: Key of the mesh; None: no tokens are made, and none are required.
            now: Returns the seconds since 1970.
        """
        self._key, self._now = key, now
        self._verifier = LeaseVerifier(key.public if key else None, now)
        self._issued: OrderedDict[str, _Issued] = OrderedDict()

    def of(self, lease: HeldLease) -> str:
        """Returns the token of a lease; empty without a key."""
        if self._key is None:
            return ""
        now, issued = self._now(), self._issued.get(lease.assignment_id)
        if issued and issued.lease == lease and now < issued.expire_time - LEASE_TOKEN_SECONDS / 2:
            return issued.token
        expire_time = now + LEASE_TOKEN_SECONDS
        token = self._key.sign(claims_of(lease, expire_time))
        self._issued[lease.assignment_id] = _Issued(token, lease, expire_time)
        self._issued.move_to_end(lease.assignment_id)
        while len(self._issued) > MOST_TOKENS:
            self._issued.popitem(last=False)
        return token

    def renewed(self, lease: HeldLease, token: str) -> str:
        """Returns the token that a pod sends from now on; empty if that is the one that it sent."""
        current = self.of(lease)
        return "" if hmac.compare_digest(current.encode(), token.encode()) else current

    def check(self, method: str, token: str, caller: Principal | None, assignment_id: str, lease_epoch: int) -> None:
        """Checks that a token is that of an assignment.

        Raises:
            PermissionDenied: The token is missing, invalid or expired, or of another assignment or pod.
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
        """Drops the token of an assignment that has ended; it stays valid, and useless, until it expires."""
        self._issued.pop(assignment_id, None)
