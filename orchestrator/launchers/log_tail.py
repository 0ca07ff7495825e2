"""Owns reading the end of a log: what a process said last is usually why it died."""

import re
from pathlib import Path

TAIL_BYTES = 4096
LONGEST_LINE = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def last_line(path: Path) -> str:
    """The last line of a file that is not blank, shortened, without colours; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return ""
    return last_line_of(tail)


def last_line_of(text: str) -> str:
    """The same of a text."""
    lines = [line.strip() for line in COLOURS.sub("", text).splitlines() if line.strip()]
    return lines[-1][:LONGEST_LINE] if lines else ""
