"""Decides whether the incumbent still improves, so that more compute is worth it. Pure."""

from dataclasses import dataclass

from leaderboard.evolution.incumbent.race import IncumbentRace
from leaderboard.evolution.trials import KEPT_PART, Trials
from leaderboard.ranking.board import named
from leaderboard.ranking.paired import difference

FEWEST_SCORES = 4
"""Scores that it is compared over at least."""
UNUSED_SCORES = 2
"""First scores that nothing is compared with: estimates are means of two, and the first score is the worst."""
ERRORS = 2.0
"""Standard errors of the difference that the return must have risen by."""


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
        compared = difference(incumbent.newest, incumbent.scores[-1 - back])
        improving = compared.value > ERRORS * compared.error
        reason = (
            f"its return changed by {compared.value:.4g} over its last {back} scores,"
            f" {'more' if improving else 'not more'} than {ERRORS:g} standard errors of {compared.error:.2g}"
        )
    return Improvement(incumbent.agents[-1].agent_id, improving, trials.incumbent_scores, reason)
