"""Implements `podrace init`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from podrace.cli.init.environments import known_environment
from podrace.cli.init.template import (
    Choices,
    check_environment,
    specification_text,
    suitable_algorithms,
    tournament_name,
)
from podrace.cli.terminal.atomic_file import check_file, whole_file
from podrace.cli.terminal.options import output_options, parse_options
from podrace.cli.terminal.output import show, show_json
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.specification.files import whole

DEFAULT_ENVIRONMENT, DEFAULT_DURATION, DEFAULT_PODS = "cartpole", "5m", 2
NONE = "none"
"""Answer or value for no limit and no target."""


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--environment", default=None, metavar="ID", help="What is learned; `podrace simulators` lists the ids.")
@click.option("--option", "options", multiple=True, metavar="K=V", help="Option of the environment; repeatable.")
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME", help="Algorithm; repeatable.")
@click.option(
    "--duration", default=None, metavar="TIME", help="End after this time, such as 30s, 10m or 2h, or `none`."
)
@click.option("--target", default=None, metavar="RETURN", help="End when an agent reaches this mean return, or `none`.")
@click.option(
    "--pods", default=None, type=click.IntRange(1, 10_000), metavar="N", help="Agents trained at the same time."
)
@click.option("--name", default="", help="Name of the tournament.  [default: that of the environment]")
@click.option("--yes", is_flag=True, help="Ask nothing: use the defaults for what no option states.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@output_options
def init(file: Path | None, yes: bool, force: bool, as_json: bool, debug: bool, **given: Any) -> int:
    """Write a commented specification for `podrace train`.

    On a terminal, the command asks for what the options do not state; otherwise it uses defaults. FILE is named after
    the tournament unless it is given.
    """
    choices = _choose(_Questions(asking=sys.stdin.isatty() and not (yes or as_json)), **given)
    path = file or Path(f"{tournament_name(choices)}.toml")
    _write(path, specification_text(choices, str(path)), force=force)
    if as_json:
        show_json({"file": str(path), "name": tournament_name(choices)})
    else:
        show(f"wrote {path}")
        show(f"check it: podrace train {path} --check")
        show(f"train:    podrace train {path}")
    return 0


def _choose(
    ask: "_Questions",
    *,
    environment: str | None,
    options: Sequence[str],
    algorithms: Sequence[str],
    duration: str | None,
    target: str | None,
    pods: int | None,
    name: str,
) -> Choices:
    id = ask.text("Environment (`podrace simulators` lists them)", environment, DEFAULT_ENVIRONMENT)
    check_environment(id)
    known = known_environment(id)
    suitable = suitable_algorithms(id)
    named = list(algorithms) or ask.text(f"Algorithms, of {', '.join(suitable)}", None, suitable[0]).split()
    length = ask.text("Train for at most (30s, 10m, 2h, none)", duration, DEFAULT_DURATION)
    usual = NONE if known.target_return is None else f"{known.target_return:g}"
    goal = ask.text("Mean return that ends the tournament", target, usual)
    at_a_time = ask.text("Agents trained at the same time", str(pods) if pods else None, str(DEFAULT_PODS), kind=int)
    return Choices(
        environment=id,
        algorithms=[each.strip(",") for each in named],
        wall_clock="" if length == NONE else length,
        target_return=_target(goal),
        pods=int(at_a_time),
        options=whole(MessageToDict(parse_options(options))),
        name=name,
    )


class _Questions:
    """Asks for what no option states; without a terminal, answers with the default."""

    def __init__(self, *, asking: bool) -> None:
        self._asking = asking

    def text(self, question: str, given: str | None, default: str, *, kind: type = str) -> str:
        if given is not None or not self._asking:
            return default if given is None else given
        return str(click.prompt(question, default=default, type=kind, err=True))


def _target(text: str) -> float | None:
    if text == NONE:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"--target {text}: expected a number, or `none`") from None


def _write(path: Path, text: str, *, force: bool) -> None:
    check_file(path, "init")
    if path.exists() and not force:
        raise FailedPrecondition(f"{path} exists; name another file, or replace it with --force")
    with whole_file(path) as incoming:
        incoming.write_text(text, encoding="utf-8")
