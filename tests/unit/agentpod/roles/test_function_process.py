"""The process of a user's function: nothing that it has started outlives it, and nobody waits for it in the loop."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentpod.config import PodConfig
from agentpod.roles.function_process import FunctionProcess


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionProcess:
    """Starts a program that writes down the pid of a child of its own, and crashes when it is told to."""
    program = tmp_path / "program"
    program.write_text(f"""#!{sys.executable}
import os, pathlib, subprocess
child = subprocess.Popen(["sleep", "1000"])
pathlib.Path({str(tmp_path / "incoming")!r}).write_text(str(child.pid))
os.rename({str(tmp_path / "incoming")!r}, {str(tmp_path / "child")!r})
open({str(tmp_path / "crash")!r}).read()
os.kill(os.getpid(), {signal.SIGSEGV})
""")
    program.chmod(0o700)
    os.mkfifo(tmp_path / "crash")
    monkeypatch.setattr(sys, "executable", str(program))
    return FunctionProcess(PodConfig("p", "unix:o", "unix:l", "folder:///s", tmp_path), "module:function")


@pytest.fixture
def child(process: FunctionProcess, tmp_path: Path) -> Iterator[int]:
    """A descriptor of the program's child."""
    process.start("cpu")
    while not (tmp_path / "child").exists():
        assert not process.ended(0.01)
    descriptor = os.pidfd_open(int((tmp_path / "child").read_text()))
    yield descriptor
    if not ended(descriptor, 0.0):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)
    if process._process:
        process._process.kill()
        process._process.wait()


def ended(descriptor: int, seconds: float = 5.0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_what_a_process_has_started_goes_when_it_crashes(process: FunctionProcess, child: int, tmp_path: Path) -> None:
    assert process.ended() == ""
    (tmp_path / "crash").write_text("now")
    assert process.ended(10.0) == "its process was ended by SIGSEGV"
    assert ended(child), "it outlives the process that has started it"
    assert process.ended() == "its process was ended by SIGSEGV"


async def test_what_a_process_has_started_goes_when_it_is_ended(process: FunctionProcess, child: int) -> None:
    await process.end()
    assert ended(child)
    assert process.ended() == "its process was not started"


async def test_the_loop_goes_on_while_a_process_that_is_ended_does_not_go(
    process: FunctionProcess, child: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = threading.Event()
    waited, wait = list[bool](), subprocess.Popen.wait

    def reluctant(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waited.append(goes.wait(5.0))
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", reluctant)
    asyncio.get_running_loop().call_soon(goes.set)
    await process.end()
    assert waited == [True], "the loop stood still"


async def test_a_process_that_has_ended_is_started_anew(process: FunctionProcess, child: int, tmp_path: Path) -> None:
    first = process._process
    process.start("cpu")
    assert process._process is first, "it was started twice"
    (tmp_path / "crash").write_text("now")
    assert process.ended(10.0)
    process.start("cpu")
    assert process._process is not first
    await process.end()
