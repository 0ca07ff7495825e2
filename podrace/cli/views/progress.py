"""How far a tournament is from each of its objectives; computes only."""

from dataclasses import dataclass

from podrace.cli.terminal import formats
from podrace.client.enum_values import state_of
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_RUNNING, Tournament


@dataclass(frozen=True)
class Progress:
    """A quantity that may be an objective."""

    name: str
    text: str
    """Where it stands, and where it is to be if it is an objective."""
    fraction: float | None
    """Share of the way, 0 to 1; None when it is no objective or cannot be told yet."""


def elapsed_seconds(tournament: Tournament, since_heard_seconds: float) -> float:
    """Time it has been running; goes on between two messages."""
    running = state_of(tournament) == TOURNAMENT_STATE_RUNNING
    return formats.seconds(tournament.running_duration) + (since_heard_seconds if running else 0.0)


def progress(tournament: Tournament, elapsed: float, first_score: float | None) -> tuple[Progress, Progress, Progress]:
    """Time, return and steps.

    Args:
        tournament: With its specification.
        elapsed: Seconds it has been running.
        first_score: Score of the first submission; the way to the target return begins there.
    """
    return _time(tournament, elapsed), _return(tournament, first_score), _steps(tournament)


def objectives(tournament: Tournament) -> dict[str, float]:
    """The objectives that are set, by name."""
    objective = tournament.spec.objective
    values: dict[str, float] = {}
    if objective.HasField("target_return"):
        values["target_return"] = objective.target_return
    if objective.HasField("wall_clock_duration"):
        values["wall_clock_seconds"] = formats.seconds(objective.wall_clock_duration)
    if objective.HasField("environment_steps"):
        values["environment_steps"] = objective.environment_steps
    return values


def _time(tournament: Tournament, elapsed: float) -> Progress:
    text = formats.duration(elapsed)
    goal = objectives(tournament).get("wall_clock_seconds")
    if goal is None:
        return Progress("time", text, None)
    return Progress("time", f"{text} of {formats.duration(goal)}", _share(elapsed, goal))


def _return(tournament: Tournament, first_score: float | None) -> Progress:
    known = tournament.HasField("best_score")
    text = formats.score(tournament.best_score, tournament.best_score_standard_error) if known else "none yet"
    goal = objectives(tournament).get("target_return")
    if goal is None:
        return Progress("return", text, None)
    fraction = None
    if known and first_score is not None:
        fraction = _share(tournament.best_score - first_score, goal - first_score)
    return Progress("return", f"{text} of {formats.number(goal)}", fraction)


def _steps(tournament: Tournament) -> Progress:
    text = formats.count(tournament.environment_steps)
    goal = objectives(tournament).get("environment_steps")
    if goal is None:
        return Progress("steps", text, None)
    return Progress("steps", f"{text} of {formats.count(goal)}", _share(tournament.environment_steps, goal))


def _share(done: float, whole: float) -> float:
    """A way of no length has been gone; a first submission may be beyond the target."""
    return min(max(done / whole, 0.0), 1.0) if whole > 0 else 1.0
