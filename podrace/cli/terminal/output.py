"""Writes the output of a command: tables and lines for people, or one JSON value on stdout; never both."""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from podrace.printable import printable, printable_lines

PIPE_WIDTH = 120
"""Columns if the output is not a terminal."""


class EscapingConsole(Console):
    """A console that escapes control characters in everything it renders.

    Renderables escape text from services themselves (`printable`), including line feeds. The console guarantees that no
    escape sequence reaches the terminal through text that a renderable has not escaped.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders an object as segments; those with terminal control codes of rich are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Returns a console on stdout or stderr that prints text literally: `[pool]` in a message is not a style."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return EscapingConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)


def show(renderable: RenderableType) -> None:
    """Writes a result for people; a string is one line, which is not wrapped."""
    text = printable(renderable) if isinstance(renderable, str) else renderable
    console().print(text, soft_wrap=isinstance(renderable, str))


def show_json(value: object) -> None:
    """Writes a result for programs as one line of JSON, which escapes control characters itself."""
    click.echo(json.dumps(finite(value), allow_nan=False))


def finite(value: Any) -> Any:
    """Replaces numbers that JSON cannot represent (NaN and infinities) by None, at any depth."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def notify(line: str) -> None:
    """Writes a message for the user to stderr, on one line."""
    click.echo(printable(line), err=True)
