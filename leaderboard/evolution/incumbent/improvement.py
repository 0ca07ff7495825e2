"""Decides whether the incumbent still improves, so that more compute is worth it. Pure.

It improves if its return rose over the last quarter of its scores. A founder that has a share of the time gets more
trust. It also counts as improving while it has few scores and, until its share is used up, while its return is below
its own best: what an untrained policy can do, such as to stand still, may be lost long before anything better is
learned.
"""

from dataclasses import dataclass

from leaderboard.evolution.incumbent.race import IncumbentRace
from leaderboard.evolution.trials import KEPT_PART, Trial, Trials
from leaderboard.ranking.board import named
from leaderboard.ranking.paired import difference
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

FEWEST_SCORES = 4
"""Scores that it is compared over at least."""
UNUSED_SCORES = 2
"""First scores that nothing is compared with: estimates cover two scores, and the first score is the worst."""
ERRORS = 2.0
"""Standard errors of the difference that the return must have risen by, or that a founder must be below its best."""


@dataclass(frozen=True)
class Improvement:
    """The trial that leads, and whether it still improves."""

    agent_id: str
    """Its newest agent."""
    improving: bool
    scores: int
    """Number of scores of the trials that led, each while it led."""
    reason: str
    """Why, in one line."""


def improvement_of(trials: Trials) -> Improvement | None:
    """Returns whether the incumbent of a race improves; None without one that was scored."""
    incumbent = trials.incumbent if isinstance(trials, IncumbentRace) else None
    if incumbent is None or not isinstance(trials, IncumbentRace) or not incumbent.scores:
        return None
    improving, reason = False, f"{named(incumbent.newest)} has too few scores to say whether it improves"
    count = incumbent.score_count
    back = max(FEWEST_SCORES, count // KEPT_PART)
    if count > back + UNUSED_SCORES:
        improving, change = _exceeds(incumbent.newest, incumbent.scores[-1 - back])
        reason = f"its return changed by {change} over its last {back} scores"
    if not improving and trials.founders.get(incumbent.algorithm) == incumbent.number:
        improving, reason = _is_trusted(trials, incumbent, few=count <= back + UNUSED_SCORES, otherwise=reason)
    return Improvement(incumbent.last_agent_id, improving, trials.incumbent_scores, reason)


def _is_trusted(race: IncumbentRace, founder: Trial, *, few: bool, otherwise: str) -> tuple[bool, str]:
    """Returns whether a founder that does not improve counts as improving all the same, and the reason."""
    if few:
        return race.spec.evolution.founder_share > 0, f"{named(founder.newest)} is a founder, and has few scores"
    assert founder.best is not None, "it has scores"
    fell, change = _exceeds(founder.best, founder.newest)
    if fell and race.founder_time_left(founder, race.clock):
        return True, f"{named(founder.newest)} is a founder with time left, and below its own best by {change}"
    return False, otherwise


def _exceeds(one: Candidate, other: Candidate) -> tuple[bool, str]:
    """Returns whether a score exceeds another one by more than the errors, and the difference in words."""
    compared = difference(one, other)
    exceeds = compared.value > ERRORS * compared.error
    size = "more" if exceeds else "not more"
    return exceeds, f"{compared.value:.4g}, {size} than {ERRORS:g} standard errors of {compared.error:.2g}"
