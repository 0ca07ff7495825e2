"""A specification is tried out in a child process: whatever user code does there, the orchestrator gets an answer."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launchers.process.inspection import LARGEST_OUTPUT_BYTES, inspect
from podrace.errors import DeadlineExceeded, Unavailable
from podrace.limits.config import EVERYTHING, NOTHING
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PATIENT_SECONDS = 300.0
"""Longer than the import of torch takes on a busy machine."""
MODULE = """
import os, time, gymnasium
print("this is not an answer")
def noisy():
    print("nor is this")
    return gymnasium.make("CartPole-v1")
def deadly():
    os.kill(os.getpid(), 9)
def endless():
    time.sleep(1000)
def chatty():
    while True:
        print("x" * 1000)
"""


def spec(id: str) -> TournamentSpec:
    values: dict[str, Any] = {"environment": {"id": id}, "objective": {"target_return": 1.0}}
    return resolve(parse(values | {"algorithms": {"ppo": {}, "sac": {}}}, source="test"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "worlds.py").write_text(MODULE)
    return {**os.environ, "PYTHONPATH": str(tmp_path), "PODRACE_STORE_SECRET_KEY": "secret"}


@pytest.mark.long
async def test_a_user_environment_is_made_in_the_child_and_what_it_prints_is_no_answer(environ: dict[str, str]) -> None:
    found = await inspect(spec("python:worlds:noisy"), EVERYTHING, environ, seconds=PATIENT_SECONDS)
    assert [one.field for one in found] == ["algorithms.sac"]


@pytest.mark.long
async def test_an_environment_that_kills_the_child_is_reported_with_the_signal(environ: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match="was killed by SIGKILL"):
        await inspect(spec("python:worlds:deadly"), EVERYTHING, environ, seconds=PATIENT_SECONDS)


async def test_an_environment_that_hangs_is_killed(environ: dict[str, str]) -> None:
    with pytest.raises(DeadlineExceeded, match=r"not made within 0\.2 s"):
        await inspect(spec("python:worlds:endless"), EVERYTHING, environ, seconds=0.2)


@pytest.mark.long
async def test_an_environment_that_prints_in_a_loop_is_killed(environ: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match=f"printed more than {LARGEST_OUTPUT_BYTES} bytes"):
        await inspect(spec("python:worlds:chatty"), EVERYTHING, environ, seconds=PATIENT_SECONDS)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_neither_output_is_read_without_a_limit(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    program = f"import sys\nwhile True: print('x' * 1000, file=sys.{stream})"
    monkeypatch.setattr(sys, "executable", _interpreter_that_runs(program, Path(environ["PYTHONPATH"])))
    with pytest.raises(Unavailable, match="printed more than"):
        await inspect(spec("CartPole-v1"), EVERYTHING, environ, seconds=PATIENT_SECONDS)


async def test_processes_that_the_child_has_started_are_killed_before_it_is_reaped(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []
    kill_group = os.killpg

    def record_state(group: int, number: int) -> None:
        states.append(Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0])
        kill_group(group, number)

    monkeypatch.setattr(os, "killpg", record_state)
    monkeypatch.setattr(sys, "executable", _interpreter_that_runs("print('[]')", Path(environ["PYTHONPATH"])))
    assert await inspect(spec("CartPole-v1"), EVERYTHING, environ, seconds=PATIENT_SECONDS) == []
    assert states == ["Z"]


def _interpreter_that_runs(program: str, folder: Path) -> str:
    """Returns a program that runs this instead of `agentpod inspect`, whose imports take long."""
    path = folder / "interpreter"
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.long
async def test_what_the_operator_does_not_allow_is_not_imported(environ: dict[str, str]) -> None:
    found = await inspect(spec("python:worlds:deadly"), NOTHING, environ, seconds=PATIENT_SECONDS)
    assert [one.field for one in found] == ["environment.id"]
