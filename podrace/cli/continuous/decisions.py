"""What continuous training decides: whether data is a new version, which version comes next, who is champion (PURE).

looks = Looks()
if looks.look(signature) is Look.READ: ...            # nobody writes any more, and it was not read before
judgement = judge(challenger, incumbent)
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

Signature = tuple[tuple[object, ...], ...]
"""What a cheap look at data shows: a row an object with its name and whatever changes when it is written."""


class Look(Enum):
    """What a cheap look means."""

    LATER = "later"
    """Nothing new."""
    SOON = "soon"
    """It has changed since the last look: somebody may be writing."""
    READ = "read"
    """It is new, and two looks in a row have shown the same."""


class Looks:
    """Tells from cheap looks when it is worth reading everything."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._last: Signature = ()
        self._read: Signature = ()

    def look(self, signature: Signature) -> Look:
        """Takes a look; empty data is never worth reading."""
        changed, self._last = signature != self._last, signature
        if changed:
            return Look.SOON
        return Look.READ if signature and signature != self._read else Look.LATER

    def read(self, signature: Signature) -> None:
        """Notes what was read."""
        self._read = signature


def is_news(digest: str, *, decided: Collection[str], taken: Collection[str]) -> bool:
    """Whether a version is to be acted on: each is trained on once, also if the data goes back to it later.

    Args:
        digest: Of the version that the data shows now.
        decided: Digests of the versions of which it is known what came of them, those left out that failed before this
            command was started: a start is a reason to try again.
        taken: Digests of the versions that are trained on now, or wait.
    """
    return digest not in decided and digest not in taken


@dataclass(frozen=True)
class Score:
    """A policy on the validation slice of one version."""

    mean_return: float
    standard_error: float
    episodes: int


@dataclass(frozen=True)
class Judgement:
    """Who is champion from now on."""

    replaces: bool
    """The challenger is."""
    reason: str
    """Why, in a line for a person."""
    difference: float | None = None
    """Challenger's mean return less incumbent's; None if there is nothing to compare."""
    standard_error: float | None = None
    """Of that difference."""


def judge(challenger: Score, incumbent: Score | None, *, incumbent_failure: str = "") -> Judgement:
    """Decides whether a challenger replaces the incumbent, both scored on the same slice and seeds.

    It does if it is ahead by more than one standard error of the difference, sqrt(a^2 + b^2), the rule by which boards
    compare (leaderboard.ranking.board). That takes the two as independent; on the same seeds they seldom are, so
    that the error
    is rather too large. Whoever is not ahead so far, equals included, does not replace anybody: a champion that is in
    use is not exchanged without need.

    Args:
        challenger: The best of the new tournament.
        incumbent: The champion so far; None if there is none, or it could not be scored.
        incumbent_failure: Why it could not be scored.
    """
    if incumbent_failure:
        return Judgement(
            False, f"the incumbent could not be scored, so nobody is known to be better: {incumbent_failure}"
        )
    if incumbent is None:
        return Judgement(True, "the first champion")
    difference = challenger.mean_return - incumbent.mean_return
    error = math.hypot(challenger.standard_error, incumbent.standard_error)
    if difference > error:
        return Judgement(
            True, f"ahead by {difference:.4g}, more than the error of that, {error:.2g}", difference, error
        )
    if difference <= 0:
        return Judgement(False, f"not ahead: {difference:+.4g}", difference, error)
    return Judgement(False, f"ahead by {difference:.4g} only, within the error of that, {error:.2g}", difference, error)
