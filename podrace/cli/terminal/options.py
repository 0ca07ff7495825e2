"""Defines the options that commands share."""

import functools
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from google.protobuf.struct_pb2 import Struct

from podrace import config
from podrace.errors import InvalidArgument

DEFAULT_HOME = "podrace-home"

Command = Callable[..., int]


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN. A comparison with NaN is never true, so NaN is in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number; fails if it is not finite or not in the range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


SEED_RANGE = click.IntRange(0, 2**64 - 1)
"""Type of options with a seed: what a field of the contract holds."""
EPISODE_RANGE = click.IntRange(1, 100_000)
"""Type of options with a number of episodes, as CreateEvaluation accepts it."""


@dataclass(frozen=True)
class Settings:
    """Values of the options that all commands share."""

    home: Path
    """Folder of the embedded mesh and of reports, as the user wrote it."""
    orchestrator: str
    """Address of a running orchestrator; empty: the embedded mesh of `home`."""
    debug: bool
    """Whether to print tracebacks and to start services with debug logs."""
    as_json: bool
    """Whether to print one JSON value on stdout and everything else on stderr."""
    store: str = ""
    """Checkpoint store of the embedded mesh, as the user wrote it; empty: the store of the home."""

    @property
    def where(self) -> str:
        """The orchestrator or the home, for messages."""
        return self.orchestrator or str(self.home)

    @property
    def arguments(self) -> str:
        """Arguments that reach the same mesh again; empty for the default home."""
        if self.orchestrator:
            return f" --orchestrator {shlex.quote(self.orchestrator)}"
        return "" if str(self.home) == DEFAULT_HOME else f" --home {shlex.quote(str(self.home))}"


def mesh_options(command: Command) -> Command:
    """Adds --orchestrator, --home, --store, --json and --debug to a command, which receives them as one `settings`."""

    @click.option("--orchestrator", default="", metavar="ADDRESS", help="Use the mesh of this running orchestrator.")
    @click.option(
        "--home",
        default=DEFAULT_HOME,
        envvar="PODRACE_HOME",
        show_default=True,
        show_envvar=True,
        type=click.Path(path_type=Path),
        help="Folder of the embedded mesh.",
    )
    @click.option(
        "--store",
        default="",
        envvar="PODRACE_STORE",
        show_envvar=True,
        metavar="URI",
        help="Checkpoint store of a new home, which records it.  [default: a folder in the home]",
    )
    @output_options
    @functools.wraps(command)
    def with_settings(home: Path, orchestrator: str, store: str, as_json: bool, debug: bool, **arguments: Any) -> int:
        return command(Settings(home, orchestrator, debug, as_json, store), **arguments)

    return with_settings


def output_options(command: Command) -> Command:
    """Adds --json (as `as_json`) and --debug to a command."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value on stdout.")
    debug = click.option("--debug", is_flag=True, help="Print tracebacks and write debug logs.")
    return as_json(debug(command))


def parse_options(texts: Sequence[str]) -> Struct:
    """Parses `--option k=v`; values are written as in a specification.

    Raises:
        InvalidArgument: A text has no `=` or no key, or its value cannot be an option.
    """
    values: dict[str, Any] = {}
    for text in texts:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise InvalidArgument(f"--option {text}: expected KEY=VALUE, for instance split=backtest")
        key, value = config.split_override(text)
        config.assign(values, key, value.isoformat() if hasattr(value, "isoformat") else value)
    struct = Struct()
    try:
        struct.update(values)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"--option {', '.join(texts)}: options are numbers, strings, lists and tables") from None
    return struct
