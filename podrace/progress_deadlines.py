"""Defines how long a role of a pod may make no progress: settings of the orchestrator, which it passes to its pods."""

from dataclasses import dataclass

from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class ProgressDeadlines:
    """Deadlines for the progress of a role: a multiple of what this agent needed before, within bounds."""

    multiple: float = 10.0
    """A role is stuck if it makes no progress for this many times the 99th percentile of the intervals between its
    earlier progress, and for at least twice the longest of them."""
    floor_seconds: float = 10.0
    """Shortest deadline. A role whose process is stopped (SIGSTOP) always has this one."""
    ceiling_seconds: float = 600.0
    """Longest deadline; also that of a role that opens, warms up (a simulator that compiles) or has not been observed
    long enough."""


def check(deadlines: ProgressDeadlines, key: str) -> None:
    """Rejects deadlines that make no sense.

    Raises:
        InvalidArgument: A value is too small; the message names the key.
    """
    if deadlines.multiple < 1:
        raise InvalidArgument(f"{key}.multiple = {deadlines.multiple:g}: expected at least 1")
    if not 0 < deadlines.floor_seconds <= deadlines.ceiling_seconds:
        raise InvalidArgument(
            f"{key}.floor_seconds = {deadlines.floor_seconds:g}: expected more than 0, and at most"
            f" {key}.ceiling_seconds = {deadlines.ceiling_seconds:g}"
        )
