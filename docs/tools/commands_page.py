"""Builds the reference of commands from their help."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
from markdown_tables import table

from podrace.cli.application import COMMANDS, application
from podrace.cli.examples import EXAMPLES

SHARED = {"orchestrator", "home", "store", "as_json", "debug"}
"""Options that are described once, at the top of the page."""
SCHEMAS = Path(__file__).parents[1] / "schemas"
SKIPPED = {"completion": "a shell runs it when it starts"}
"""Commands whose examples the tests of documents cannot parse, and why."""


def tables() -> dict[str, str]:
    """Returns the sections of all commands, and the table of the shared options."""
    context = click.Context(application, info_name="podrace")
    sections = (part for name in COMMANDS for part in _command(name, application.get_command(context, name)))
    return {"commands": "\n".join(sections), "shared-options": _options(_of("show"), shared=True)}


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Yields every command that is not a group, with its name, for instance `data build`."""
    for name in COMMANDS:
        command = _of(name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", each) for part, each in command.commands.items())
        else:
            yield name, command


def _of(name: str) -> click.Command:
    command = application.get_command(click.Context(application), name)
    assert command is not None
    return command


def _command(name: str, command: click.Command | None) -> Iterator[str]:
    assert command is not None
    yield f"## podrace {name}\n" if " " not in name else f"### podrace {name}\n"
    yield _help(command)
    if isinstance(command, click.Group):
        for part, each in command.commands.items():
            yield from _command(f"{name} {part}", each)
        return
    yield f"`{' '.join(['podrace', name, *command.collect_usage_pieces(click.Context(command))])}`\n"
    if own := _options(command, shared=False):
        yield own
    if name in EXAMPLES:
        mark = f"<!-- docs-test: skip {SKIPPED[name]} -->\n" if name in SKIPPED else ""
        yield f"{mark}```sh\n{_examples(name)}\n```\n"
    if links := _schemas(name.replace(" ", "-")):
        yield f"JSON Schema of its output: {', '.join(links)}\n"


def _schemas(name: str) -> list[str]:
    """Returns links to the schema of a command, and to those of its options that print another shape."""
    files = [SCHEMAS / f"{name}.json", *sorted(SCHEMAS.glob(f"{name}-*.json"))]
    return [f"[{path.stem}](schemas/{path.name})" for path in files if path.is_file()]


def _examples(name: str) -> str:
    return "\n".join(f"{line}  # {comment}" if comment else line for line, comment in EXAMPLES[name])


def _help(command: click.Command) -> str:
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    # A paragraph that begins with \b has its own line breaks; in a group these are examples of its commands.
    plain = [" ".join(part.split()) for part in paragraphs if not part.startswith("\b")]
    return "\n\n".join(part.replace("<", "&lt;") for part in plain) + "\n"


def _options(command: click.Command, *, shared: bool) -> str:
    context = click.Context(command)
    rows = []
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or (parameter.name in SHARED) is not shared:
            continue
        record = parameter.get_help_record(context)
        if record and parameter.name != "help":
            rows.append([f"`{record[0]}`", " ".join(record[1].split()).replace("<", "&lt;")])
    return table(("Option", "Meaning"), rows) if rows else ""
