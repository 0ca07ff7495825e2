"""Every command has examples in its help, and each of them is a valid command line."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
from block_checks import COMMANDS as CHECKS

from podrace.cli.application import COMMANDS, application
from podrace.cli.examples import EXAMPLES, epilog


def leaves() -> Iterator[str]:
    """Names of all commands that are not groups."""
    for name in COMMANDS:
        command = application.get_command(click.Context(application), name)
        yield from (f"{name} {part}" for part in command.commands) if isinstance(command, click.Group) else [name]


@pytest.mark.parametrize("name", list(leaves()))
def test_the_help_of_every_command_has_an_example_of_it(type_: Any, name: str) -> None:
    out = type_(*name.split(), "--help").out.partition("\n")[2]
    lines = [line for line in out.splitlines() if re.search(rf"^\s+(\S+ \"\$\()?podrace {name}\b", line)]
    assert lines, f"add an example of {name} to podrace/cli/examples.py"


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in EXAMPLES.items() for line, _ in lines])
def test_every_example_is_a_valid_line_of_its_command(name: str, line: str) -> None:
    command = re.search(r"podrace [^>)]*", line)
    assert command is not None
    words = shlex.split(command[0])
    assert " ".join(words[1:]).startswith(name)
    assert CHECKS["podrace"](words[1:]) is None


def test_every_entry_belongs_to_a_command() -> None:
    assert set(EXAMPLES) <= set(leaves())


def test_examples_are_aligned_and_can_be_pasted_with_their_comments() -> None:
    lines = (epilog("ls") or "").splitlines()
    assert lines[1:4] == [
        "Examples:",
        "  podrace ls                                             # the tournaments of podrace-home",
        "  podrace ls --json                                      # the same as JSON, for programs",
    ]
    assert epilog("nosuch") is None
