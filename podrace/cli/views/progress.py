"""Computes the progress of a tournament towards its objectives. Pure."""

from dataclasses import dataclass

from podrace.cli.terminal import formats
from podrace.client.enum_values import state_of
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_RUNNING, Tournament


@dataclass(frozen=True)
class ObjectiveProgress:
    """Progress of a quantity that may be an objective."""

    name: str
    text: str
    """The value, and the target if it is an objective."""
    fraction: float | None
    """Fraction of the target that is reached, 0 to 1; None if it is not an objective or not known yet."""


def elapsed_seconds(tournament: Tournament, since_update_seconds: float) -> float:
    """Returns the running time of a tournament, extrapolated by the time since its last update while it runs."""
    running = state_of(tournament) == TOURNAMENT_STATE_RUNNING
    return formats.seconds(tournament.running_duration) + (since_update_seconds if running else 0.0)


def progress(
    tournament: Tournament, elapsed: float, first_score: float | None
) -> tuple[ObjectiveProgress, ObjectiveProgress, ObjectiveProgress]:
    """Returns the progress of running time, return and environment steps.

    Args:
        tournament: The tournament with its specification.
        elapsed: Running time in seconds.
        first_score: Score of the first submission, from which progress towards the target return is measured.
    """
    return _time(tournament, elapsed), _return(tournament, first_score), _steps(tournament)


def objectives(tournament: Tournament) -> dict[str, float]:
    """Returns the objectives that are set, by name."""
    objective = tournament.spec.objective
    values: dict[str, float] = {}
    if objective.HasField("target_return"):
        values["target_return"] = objective.target_return
    if objective.HasField("wall_clock_duration"):
        values["wall_clock_seconds"] = formats.seconds(objective.wall_clock_duration)
    if objective.HasField("environment_steps"):
        values["environment_steps"] = objective.environment_steps
    return values


def _time(tournament: Tournament, elapsed: float) -> ObjectiveProgress:
    text = formats.duration(elapsed)
    goal = objectives(tournament).get("wall_clock_seconds")
    if goal is None:
        return ObjectiveProgress("time", text, None)
    return ObjectiveProgress("time", f"{text} of {formats.duration(goal)}", _share(elapsed, goal))


def _return(tournament: Tournament, first_score: float | None) -> ObjectiveProgress:
    known = tournament.HasField("best_score")
    text = formats.score(tournament.best_score, tournament.best_score_standard_error) if known else "none yet"
    goal, name = objectives(tournament).get("target_return"), formats.measure(tournament.spec.evaluation.objective)
    if goal is None:
        return ObjectiveProgress(name, text, None)
    fraction = None
    if known and first_score is not None:
        fraction = _share(tournament.best_score - first_score, goal - first_score)
    return ObjectiveProgress(name, f"{text} of {formats.number(goal)}", fraction)


def _steps(tournament: Tournament) -> ObjectiveProgress:
    text = formats.count(tournament.environment_steps)
    goal = objectives(tournament).get("environment_steps")
    if goal is None:
        return ObjectiveProgress("steps", text, None)
    return ObjectiveProgress("steps", f"{text} of {formats.count(goal)}", _share(tournament.environment_steps, goal))


def _share(done: float, whole: float) -> float:
    """Returns done / whole, limited to 0 to 1; 1 if `whole` is not positive, as when the first score met the target."""
    return min(max(done / whole, 0.0), 1.0) if whole > 0 else 1.0
