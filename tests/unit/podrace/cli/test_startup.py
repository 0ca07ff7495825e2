"""Which packages the command imports before it runs anything; every run is a separate process."""

import os
import subprocess
import sys

import pytest

from podrace.cli.application import COMMANDS

OWN = {"click", "podrace"}
"""Packages that the list of commands needs. gRPC and Rich take 0.2 s to import."""
PROGRAM = """
import atexit, sys
before = {module.partition(".")[0] for module in sys.modules}
def report():
    imported = {module.partition(".")[0] for module in sys.modules} - before
    print("imported", *sorted(imported - sys.stdlib_module_names), file=sys.stderr)
atexit.register(report)
from podrace.cli import main
sys.exit(main())
"""


def run(*arguments: str, **environment: str) -> tuple[int, str, str, set[str]]:
    """Exit code, output, errors, and the packages outside the standard library that were imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    errors, _, imported = done.stderr.rpartition("imported")
    return done.returncode, done.stdout, errors, set(imported.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), (["-h"], 0), (["--version"], 0), ([], 2), (["nosuch"], 2), (["--nosuch"], 2)],
    ids=["help", "h", "version", "nothing", "unknown command", "unknown option"],
)
def test_an_invocation_without_a_known_command_imports_only_click(arguments: list[str], code: int) -> None:
    returned, _, _, imported = run(*arguments)
    assert returned == code
    assert imported <= OWN


def complete(words: str) -> tuple[int, str, str, set[str]]:
    """Asks for completions of a command line, as a shell does."""
    number = str(len(words.split(" ")) - 1)
    return run(COMP_WORDS=words, COMP_CWORD=number, _PODRACE_COMPLETE="bash_complete")


def test_completing_the_name_of_a_command_imports_only_click() -> None:
    code, output, _, imported = complete("podrace ")
    assert code == 0
    assert [line.removeprefix("plain,") for line in output.split()] == list(COMMANDS)
    assert imported <= OWN


@pytest.mark.long
def test_completion_finds_names_by_their_beginning_and_options_and_prints_no_error() -> None:
    assert complete("podrace st")[1].split() == ["plain,standings", "plain,stop", "plain,store", "plain,strategies"]
    assert "plain,--version" in complete("podrace --v")[1].split()
    assert "plain,--resume" in complete("podrace train --re")[1].split()
    _, _, errors, _ = complete("podrace nosuch --")
    assert errors == ""
