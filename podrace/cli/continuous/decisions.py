"""Decides when to read the data, which versions are new, and which agent is champion (pure).

poller = Poller()
if poller.observe(signature) is PollResult.READ: ...     # the data is stable and has not been read yet
decision = decide_champion(challenger, incumbent)
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

Signature = tuple[tuple[object, ...], ...]
"""Cheap summary of the data: one row per object with its name and values that change when the object is written."""


class PollResult(Enum):
    """What to do after a poll of the data."""

    LATER = "later"
    """Nothing is new: poll again after the usual time."""
    SOON = "soon"
    """The data changed since the last poll and may still be changing: poll again soon."""
    READ = "read"
    """The data is new and was the same in two polls: read it."""


class Poller:
    """Decides from signatures when the data is new and stable, so that it is worth reading."""

    def __init__(self) -> None:
        self._last: Signature = ()
        self._read: Signature = ()

    def observe(self, signature: Signature) -> PollResult:
        """Compares a signature with the previous one; empty data is never read."""
        changed, self._last = signature != self._last, signature
        if changed:
            return PollResult.SOON
        return PollResult.READ if signature and signature != self._read else PollResult.LATER

    def mark_read(self, signature: Signature) -> None:
        """Records that the data with this signature was read."""
        self._read = signature


def is_new(digest: str, *, decided: Collection[str], taken: Collection[str]) -> bool:
    """Returns whether to train on a version. Each version is trained on once, even if the data returns to it later.

    Args:
        digest: Digest of the version that was read.
        decided: Digests of the versions with a verdict. Versions that failed before this process started are not among
            them, because a restart is a reason to try again.
        taken: Digests of the version that is being trained on and of the one that waits.
    """
    return digest not in decided and digest not in taken


@dataclass(frozen=True)
class ValidationScore:
    """Score of a policy on the validation slice of one version."""

    mean_return: float
    standard_error: float
    episodes: int


@dataclass(frozen=True)
class ChampionDecision:
    """Whether the challenger becomes champion."""

    replaces: bool
    """Whether the challenger replaces the incumbent."""
    reason: str
    """Why, in one line."""
    difference: float | None = None
    """Mean return of the challenger minus that of the incumbent; None if there is nothing to compare."""
    standard_error: float | None = None
    """Standard error of the difference."""


def decide_champion(
    challenger: ValidationScore, incumbent: ValidationScore | None, *, incumbent_failure: str = ""
) -> ChampionDecision:
    """Decides whether a challenger replaces the incumbent, both scored on the same slice and seeds.

    The challenger replaces the incumbent if it is ahead by more than one standard error of the difference,
    sqrt(a^2 + b^2), as in `leaderboard.ranking.board`. The formula treats the two scores as independent. On the same
    seeds they are usually correlated, so the formula overestimates the error. An equal challenger does not replace the
    incumbent, because a champion in use should not change without need.

    Args:
        challenger: Score of the best agent of the new tournament.
        incumbent: Score of the current champion; None if there is none, or it could not be scored.
        incumbent_failure: Why the champion could not be scored.
    """
    if incumbent_failure:
        return ChampionDecision(False, f"the incumbent could not be scored, so it stays: {incumbent_failure}")
    if incumbent is None:
        return ChampionDecision(True, "the first champion")
    difference = challenger.mean_return - incumbent.mean_return
    error = math.hypot(challenger.standard_error, incumbent.standard_error)
    if difference > error:
        reason = f"ahead by {difference:.4g}, more than the standard error {error:.2g}"
        return ChampionDecision(True, reason, difference, error)
    if difference <= 0:
        return ChampionDecision(False, f"not ahead: {difference:+.4g}", difference, error)
    reason = f"ahead by only {difference:.4g}, within the standard error {error:.2g}"
    return ChampionDecision(False, reason, difference, error)
