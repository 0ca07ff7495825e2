"""Exit codes are those that docs/commands.md lists, and colors are used only on a terminal."""

import re
from pathlib import Path
from typing import Any

import click
import pytest

from podrace import cli
from podrace.cli.terminal.output import console

PAGE = Path(__file__).parents[4] / "docs" / "commands.md"


def test_the_page_lists_all_codes() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    assert listed == {0, cli.EXIT_FAILED, cli.EXIT_WRONG_REQUEST, cli.EXIT_INTERRUPTED}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["version"], 0),
        (["version", "--help"], 0),
        (["version", "--orchestrator", "unix:/nowhere/o.sock"], 1),
        (["doctor", "--store", "s3://bucket"], 1),
        (["nosuch"], 2),
        (["version", "--nosuch"], 2),
        (["show", "latest"], 2),
        (["train", "absent.toml"], 2),
        (["algorithms", "nosuch"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_each_kind_of_outcome_has_its_code(
    type_: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.setattr("podrace.client.discovery.ANSWER_SECONDS", 0.2)
    answer = type_(*arguments)
    assert answer.code == code
    if code and arguments[0] != "doctor":
        assert answer.err.startswith("error: ")
        assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["serve", "train"])
def test_a_name_that_no_file_can_have_is_an_error_of_one_line(type_: Any, command: str) -> None:
    answer = type_(command, "a" * 5_000)
    assert answer.code in (cli.EXIT_FAILED, cli.EXIT_WRONG_REQUEST)
    assert answer.err.startswith("error: ")
    assert answer.err.endswith("File name too long\n")
    assert len(answer.err.splitlines()) == 1


def test_an_empty_name_does_not_serve_the_current_folder(
    type_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert type_("serve", "").code == cli.EXIT_WRONG_REQUEST


def test_a_question_that_is_answered_with_no_counts_as_an_interrupt(
    type_: Any, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(click, "confirm", confirm)
    assert type_("delete", "latest", "--orchestrator", mesh.address).code == 130


@pytest.mark.parametrize(
    ("terminal", "environment", "colored"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
    ],
    ids=["terminal", "NO_COLOR", "pipe", "FORCE_COLOR"],
)
def test_colors_are_used_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], colored: bool
) -> None:
    written: list[str] = []

    class Stream:
        encoding = "utf-8"

        def isatty(self) -> bool:
            return terminal

        def write(self, text: str) -> None:
            written.append(text)

        def flush(self) -> None: ...

    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Stream())
    console().print("word", style="red")
    assert ("\x1b[" in "".join(written)) is colored
