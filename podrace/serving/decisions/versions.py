"""Decides which version of a policy serves: swaps, pins, roll backs and comparisons. Pure.

A version is named by a digest. Each function returns the new record and the reason; the engine loads versions first and
applies the record as a whole, so every request is answered by exactly one version.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from podrace.errors import Aborted, FailedPrecondition, InvalidArgument, NamedResource, NotFound
from podrace.serving.decisions.gate import GateVerdict

MOST_PREVIOUS = 4
"""Versions that stay loaded for a roll back."""
MOST_REFUSED = 100
"""Refused versions that are remembered."""
SHARE_STEPS = 10_000
"""Resolution of the share of a comparison."""


@dataclass(frozen=True)
class Comparison:
    """A second version that computes requests as well."""

    version: str
    share: float = 0.0
    """Share of the requests that it answers, 0 to 1."""
    shadow: bool = False
    """Whether it computes all requests and answers none."""


@dataclass(frozen=True)
class ServingRecord:
    """Which versions serve."""

    current: str = ""
    """Version that answers; empty: none is loaded yet."""
    previous: tuple[str, ...] = ()
    """Versions that answered before, the latest first."""
    pinned: bool = False
    """Whether offers of the source are ignored."""
    comparison: Comparison | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Versions that are not served when they are offered again, with the reason."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Versions that must stay loaded, the current one first."""
        other = (self.comparison.version,) if self.comparison else ()
        return tuple(dict.fromkeys(version for version in (self.current, *other, *self.previous) if version))


class Change(NamedTuple):
    """A new record, and why."""

    record: ServingRecord
    reason: str


def version_of(manifest_digests: Sequence[str]) -> str:
    """Returns the version of a policy: the digest of its manifest; for an ensemble, that of its members' digests."""
    if len(manifest_digests) == 1:
        return manifest_digests[0]
    return hashlib.sha256("\n".join(manifest_digests).encode()).hexdigest()


def wanted(record: ServingRecord, version: str) -> bool:
    """Whether an offered version is to be loaded and examined."""
    return bool(version) and not record.pinned and version != record.current and version not in record.refused


def offer(record: ServingRecord, version: str, verdict: GateVerdict) -> Change:
    """Decides about a version that the source offers.

    Args:
        record: Which versions serve.
        version: The offered version, loaded.
        verdict: Of the gate.
    """
    if not wanted(record, version):
        return Change(record, "it serves already, was refused before, or another version is pinned")
    if not verdict.accepted:
        return Change(refuse(record, version, verdict.reason), f"refused: {verdict.reason}")
    return Change(_serving(record, version), f"offered and accepted: {verdict.reason}")


def refuse(record: ServingRecord, version: str, reason: str) -> ServingRecord:
    """Returns the record with a version that is not served when it is offered again."""
    kept = list(record.refused.items())[-(MOST_REFUSED - 1) :]
    return replace(record, refused=dict(kept) | {version: reason})


def pin(record: ServingRecord, version: str) -> Change:
    """Serves a loaded version, and ignores offers from now on."""
    return Change(replace(_serving(record, version), pinned=True), "pinned")


def follow(record: ServingRecord) -> Change:
    """Accepts offers again. The version that serves stays until another one is offered."""
    return Change(replace(record, pinned=False), "follows its source")


def roll_back(record: ServingRecord, from_version: str) -> Change:
    """Serves the previous version. The current one is not served again when it is offered.

    Args:
        record: Which versions serve.
        from_version: The version that must serve now.

    Raises:
        Aborted: Another version serves now.
        FailedPrecondition: There is no version to return to.
    """
    if from_version != record.current:
        raise Aborted(
            f"{record.current[:12] or 'no version'} serves now, not {from_version[:12]}: read again and decide"
        )
    if not record.previous:
        raise FailedPrecondition(f"version {from_version[:12]}: no version served before it, so there is none to serve")
    first, *others = record.previous
    kept = refuse(record, from_version, "rolled back")
    return Change(
        _checked(replace(kept, current=first, previous=tuple(others))), f"rolled back from {from_version[:12]}"
    )


def compare(record: ServingRecord, comparison: Comparison) -> Change:
    """Adds a second version: it answers a share of the requests, or shadows all of them.

    Raises:
        FailedPrecondition: No version serves yet, or it is the version that serves.
        InvalidArgument: A share of a shadow, or no share.
    """
    if not record.current or comparison.version == record.current:
        raise FailedPrecondition(f"version {comparison.version[:12]}: there is no other version to compare it with")
    if comparison.shadow == bool(comparison.share):
        raise InvalidArgument("either shadow, or a share between 0 and 1")
    how = "shadows all requests" if comparison.shadow else f"answers {comparison.share:.2%} of the requests"
    return Change(replace(record, comparison=comparison), f"{comparison.version[:12]} {how}")


def end_comparison(record: ServingRecord) -> Change:
    """Removes the second version."""
    return Change(replace(record, comparison=None), "the comparison has ended")


def version_for(record: ServingRecord, key: str) -> str:
    """Returns the version that answers a request.

    Args:
        record: Which versions serve.
        key: Requests with the same key get the same version while the record stays the same.

    Raises:
        NotFound: No version serves yet.
    """
    if not record.current:
        raise NotFound(
            "no policy is served yet: its tournament has no candidate, or the policy is being loaded",
            resource=NamedResource("version", ""),
        )
    other = record.comparison
    if other is None or not other.share:
        return record.current
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % SHARE_STEPS
    return other.version if bucket < round(other.share * SHARE_STEPS) else record.current


def _serving(record: ServingRecord, version: str) -> ServingRecord:
    if version == record.current:
        return record
    before = [known for known in (record.current, *record.previous) if known and known != version]
    refused = {known: reason for known, reason in record.refused.items() if known != version}
    return _checked(replace(record, current=version, previous=tuple(before[:MOST_PREVIOUS]), refused=refused))


def _checked(record: ServingRecord) -> ServingRecord:
    """Ends a comparison with the version that serves now."""
    same = record.comparison is not None and record.comparison.version == record.current
    return replace(record, comparison=None) if same else record
