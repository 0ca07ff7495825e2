"""How a command answers: tables for people, or one JSON value on stdout; never both."""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console, RenderableType

PIPE_WIDTH = 120
"""Columns when the output is no terminal."""


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout or stderr that takes text as it is: `[pool]` in a message is no style."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def show(renderable: RenderableType) -> None:
    """Writes the answer for a person; a line of text is left in one piece."""
    console().print(renderable, soft_wrap=isinstance(renderable, str))


def show_json(value: object) -> None:
    """Writes the answer for a script: one line."""
    click.echo(json.dumps(finite(value), allow_nan=False))


def finite(value: Any) -> Any:
    """The value with null for every number that JSON cannot say."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tell(line: str) -> None:
    """Says something beside the answer."""
    click.echo(line, err=True)
