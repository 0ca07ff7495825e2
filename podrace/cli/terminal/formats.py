"""Formats numbers, durations and times for display."""

import math
from collections.abc import Iterable
from datetime import datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.client.enum_values import state_of
from podrace.printable import printable
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import Tournament

_UNITS = ("", "k", "M", "G", "T")


def cell(value: object) -> object:
    """Returns a value of a CSV file; control characters in strings, including line feeds, are escaped."""
    return printable(value) if isinstance(value, str) else value


def count(number: float) -> str:
    """Formats a count with at most three digits and a unit: 950, 12.3k, 1.2M."""
    for unit in _UNITS:
        # A number that would be rounded to 1000 gets the next unit.
        if number < 999.5 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.{1 if unit and number < 99.95 else 0}f}{unit}"


def things(number: int, noun: str) -> str:
    """Formats a count with its noun: 1 pod, 12 agents."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def agents(tournament: Tournament) -> str:
    """Formats the number of agents of a tournament, and how many of them failed."""
    failed = f", {count(tournament.failed_agents)} failed" if tournament.failed_agents else ""
    return f"{things(tournament.agents, 'agent')}{failed}"


def measure(objective: str) -> str:
    """Formats the name of the score of an episode (`evaluation.objective`): return, sharpe ratio."""
    return objective.replace("_", " ") or "return"


def duration(seconds: float) -> str:
    """Formats a duration as 0:42, 12:05 or 1:02:03."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def decimals(value: float, error: float) -> int:
    """Returns the number of significant decimals: two digits of the error, or four digits of the value if it is 0."""
    if not (math.isfinite(value) and math.isfinite(error)):
        return 1
    if error > 0:
        return min(max(1 - math.floor(math.log10(error)), 0), 6)
    return min(max(3 - math.floor(math.log10(abs(value))), 1), 6) if value else 1


def score(value: float, error: float | None, digits: int | None = None) -> str:
    """Formats a mean and its standard error as 312.4 ± 8.1.

    Args:
        value: The mean.
        error: Its standard error; None if it is unknown, then only the mean is shown.
        digits: Number of decimals; None chooses them with `decimals`.
    """
    if error is None:
        return number(value)
    digits = decimals(value, error) if digits is None else digits
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def number(value: float) -> str:
    """Formats a number without a known error: 475.0, 0.0123."""
    return f"{value:.{decimals(value, 0.0)}f}"


def percent(fraction: float) -> str:
    """Formats a fraction in percent: 12.3 %."""
    return f"{100 * fraction:.1f} %"


def local_time(timestamp: Timestamp) -> str:
    """Formats a timestamp in local time: 2026-11-21 11:04."""
    return datetime.fromtimestamp(timestamp.seconds).strftime("%Y-%m-%d %H:%M")


def local_second(timestamp: Timestamp) -> str:
    """Formats a timestamp in local time with seconds: 2026-11-21 11:04:09."""
    return datetime.fromtimestamp(timestamp.seconds).strftime("%Y-%m-%d %H:%M:%S")


def is_today(timestamp: Timestamp) -> bool:
    """Returns whether a timestamp is of today in local time."""
    return datetime.fromtimestamp(timestamp.seconds).date() == datetime.now().date()


def clock_time(timestamp: Timestamp) -> str:
    """Formats the local time of day of a timestamp: 11:04:09."""
    return datetime.fromtimestamp(timestamp.seconds).strftime("%H:%M:%S")


def seconds(length: Duration) -> float:
    """Returns the seconds of a Duration."""
    return length.seconds + length.nanos * 1e-9


def state(tournament: tournament_pb2.Tournament) -> str:
    """Returns the name of the state of a tournament: RUNNING, COMPLETED."""
    return tournament_pb2.TournamentState.Name(state_of(tournament)).removeprefix("TOURNAMENT_STATE_")


def short(name: str, tournament_id: str) -> str:
    """Returns the name of a pod or an agent without the id of its tournament: p3, a12."""
    return name.removeprefix(f"{tournament_id}-")


def short_all(names: Iterable[str], tournament_id: str) -> str:
    """Returns several short names, separated by commas: a3, a7."""
    return ", ".join(short(name, tournament_id) for name in names)
