"""Logs of an embedded mesh: which file, how many lines, and lines that are written meanwhile."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podrace.processes.log_rotation import copy_and_truncate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = tmp_path / "podrace-home" / "logs"
    logs.mkdir(parents=True)
    (logs / "cartpole-abc-p1.log").write_text("".join(f"line {number}\n" for number in range(100)))
    (logs / "cartpole-abc-p2.log").write_text("other\n")
    (logs / "orchestrator.log").write_text("serves\n")
    return logs


def test_the_last_lines_of_a_pod_are_shown(type_: Any, folder: Path) -> None:
    answer = type_("logs", "cartpole-abc-p1", "--lines", "2")
    assert (answer.code, answer.out) == (0, "line 98\nline 99\n")
    assert len(type_("logs", "cartpole-abc-p1").out.splitlines()) == 50


def test_a_service_has_a_log_too_and_json_is_one_value(type_: Any, folder: Path) -> None:
    assert type_("logs", "orch", "--json").json == {
        "log": "orchestrator",
        "file": str(folder / "orchestrator.log"),
        "lines": ["serves"],
    }


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["cartpole-abc-p"], 2, "ambiguous"),
        (["cartpole-abc-q1"], 2, "did you mean 'cartpole-abc-p1'"),
        (["orchestrator", "--follow", "--json"], 2, "leave one of them out"),
        (["p1", "--orchestrator", "h:1"], 1, "kubectl logs"),
    ],
)
def test_what_cannot_be_shown_is_reported_in_one_line(
    type_: Any, folder: Path, arguments: list[str], code: int, error: str
) -> None:
    answer = type_("logs", *arguments)
    assert answer.code == code
    assert error in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_home_without_logs_is_reported(type_: Any) -> None:
    answer = type_("logs", "p1")
    assert answer.code == 2
    assert "podrace train" in answer.err


def test_control_characters_of_a_log_do_not_reach_the_terminal(type_: Any, folder: Path) -> None:
    (folder / "orchestrator.log").write_bytes(b"\x1b[2Jcleared\n\xff\n")
    assert type_("logs", "orchestrator").out == "\\x1b[2Jcleared\n�\n"


def test_the_last_lines_include_those_before_a_rotation(type_: Any, folder: Path) -> None:
    path = folder / "cartpole-abc-p1.log"
    copy_and_truncate(path, 3)
    path.write_text("line 100\n")
    assert type_("logs", "cartpole-abc-p1", "--lines", "2").out == "line 99\nline 100\n"
    assert type_("logs", "cartpole-abc-p1", "--lines", "1").out == "line 100\n"


@pytest.mark.long
def test_following_shows_new_lines_until_it_is_interrupted(folder: Path) -> None:
    command = [sys.executable, "-m", "podrace.cli", "logs", "cartpole-abc-p2", "--follow"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder.parents[1], env=environment
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "other\n"
        with (folder / "cartpole-abc-p2.log").open("a") as log:
            log.write("new\n")
        assert following.stdout.readline() == "new\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130
