"""Decides whether a tournament has reached its objective. Pure functions.

The wall clock is checked at any time. Everything that depends on results is checked only between rounds; otherwise a
synchronous tournament could end in the middle of a round, at a moment that the seed does not determine.
"""

from dataclasses import dataclass

from orchestrator.decisions.target import TargetCheck, describe
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec


@dataclass(frozen=True)
class TournamentProgress:
    """The progress of a tournament."""

    target_check: TargetCheck | None
    """The check on new episodes that reached the target return; None if there is none."""
    running_seconds: float
    """Wall-clock time without pauses."""
    environment_steps: int
    """Environment steps over all agents."""
    between_rounds: bool
    """Whether no round is in progress; always True for a tournament without rounds."""


def met(objective: ObjectiveSpec, progress: TournamentProgress) -> str:
    """Returns which objective is met, as one line of text; empty while none is met."""
    seconds = objective.wall_clock_duration.ToNanoseconds() / 1e9
    if objective.HasField("wall_clock_duration") and progress.running_seconds >= seconds:
        return f"wall clock: ran for {progress.running_seconds:.0f} s of {seconds:.0f} s"
    if not progress.between_rounds:
        return ""
    if objective.HasField("target_return") and progress.target_check is not None:
        return f"target return: {describe(progress.target_check, objective.target_return)}"
    if objective.HasField("environment_steps") and progress.environment_steps >= objective.environment_steps:
        return f"environment steps: {progress.environment_steps} of {objective.environment_steps}"
    return ""
