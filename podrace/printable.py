"""Escapes control characters in text of other processes, so that it cannot change a terminal, a log line or a page."""

import json
import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters of ASCII and Latin-1, line separators, and characters that change the direction of text."""
_CONTROL_IN_LAYOUT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

LONGEST_LINE = 300
"""Characters of a plugin's reason that are recorded."""


def printable(text: str) -> str:
    r"""Returns text on one line, with control characters as escape sequences such as `\x1b` and `\n`."""
    return _CONTROL.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Escapes control characters except line feeds; for text that the program has already laid out in lines."""
    return _CONTROL_IN_LAYOUT.sub(_escape, text)


def one_line(text: str) -> str:
    """Returns text on one line of at most LONGEST_LINE characters, with white space as single spaces; for reasons."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "..."


def quoted(text: str) -> str:
    r"""Returns text in quotes as JSON and TOML write it, with control characters as `\u001b`; other text as it is."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
