"""Reads the last line of a log, which usually shows why a process died."""

import re
from pathlib import Path

from podrace.processes.log_rotation import rotated

TAIL_BYTES = 4096
LONGEST_LINE = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def last_line(path: Path) -> str:
    """Returns the last line of a log that is not blank, shortened, without colors; empty if there is none.

    The log may have been rotated just now: its last line is then in the rotated file.
    """
    return last_line_of(_tail(path)) or last_line_of(_tail(rotated(path)))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_line_of(text: str) -> str:
    """Like `last_line`, for a text."""
    lines = [line.strip() for line in COLOURS.sub("", text).splitlines() if line.strip()]
    return lines[-1][:LONGEST_LINE] if lines else ""
