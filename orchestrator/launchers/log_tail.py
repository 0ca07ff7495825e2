"""Reads the last line of a log, which usually says why a process died."""

import re
from pathlib import Path

TAIL_BYTES = 4096
LONGEST_LINE = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def last_line(path: Path) -> str:
    """Returns the last line of a file that is not blank, shortened, without colors; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return ""
    return last_line_of(tail)


def last_line_of(text: str) -> str:
    """Like `last_line`, for a text."""
    lines = [line.strip() for line in COLOURS.sub("", text).splitlines() if line.strip()]
    return lines[-1][:LONGEST_LINE] if lines else ""
