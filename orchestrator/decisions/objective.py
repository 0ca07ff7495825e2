"""Decides whether a tournament has reached its objective. Pure: knows no clock, no database and no leaderboard."""

from dataclasses import dataclass

from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec


@dataclass(frozen=True)
class TournamentProgress:
    """How far a tournament has come."""

    best_score: float | None
    """Mean return of the best candidate; None while the board is empty."""
    running_seconds: float
    """Wall clock it was running, pauses left out."""
    environment_steps: int
    """Steps over all agents."""
    between_rounds: bool
    """No round is half done; always true of a tournament that has no rounds."""


def met(objective: ObjectiveSpec, progress: TournamentProgress) -> str:
    """Says, in a line for a person, which objective is met; empty while none is.

    What depends on results is judged between rounds only, or a synchronous tournament would end within a round at a
    moment that no seed decides; the wall clock is judged at any time.
    """
    seconds = objective.wall_clock_duration.ToNanoseconds() / 1e9
    if objective.HasField("wall_clock_duration") and progress.running_seconds >= seconds:
        return f"wall clock: ran for {progress.running_seconds:.0f} s of {seconds:.0f} s"
    if not progress.between_rounds:
        return ""
    target, score = objective.target_return, progress.best_score
    if objective.HasField("target_return") and score is not None and score >= target:
        return f"target return: the best candidate scores {score:g}, the target is {target:g}"
    if objective.HasField("environment_steps") and progress.environment_steps >= objective.environment_steps:
        return f"environment steps: {progress.environment_steps} of {objective.environment_steps}"
    return ""
