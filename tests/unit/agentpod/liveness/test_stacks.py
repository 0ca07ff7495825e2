import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentpod.liveness import stacks
from podrace.processes.identity import Process

HANGING = """
import sys, time
from pathlib import Path
from agentpod.liveness import stacks
stacks.dump_on_signal(Path(sys.argv[1]), "worker-0")
def hanging_step():
    print("ready", flush=True)
    while True:
        pass
hanging_step()
"""


DUMPING = """
import asyncio, ctypes, sys, threading
from pathlib import Path
from agentpod.liveness import stacks
def waiting_step():
    print("ready", flush=True)
    threading.Event().wait()
def holding_step():
    print("ready", flush=True)
    # Functions of PyDLL keep the interpreter's lock.
    ctypes.PyDLL(None).sleep(60)
async def run():
    dumping = asyncio.create_task(stacks.dump_regularly(Path(sys.argv[1]), "worker-0", 1.0))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(globals()[sys.argv[2]])
asyncio.run(run())
"""
NONE = "no stacks: the role dumped none since its last progress"


@contextmanager
def started(program: str, *arguments: str) -> Iterator[Process]:
    """Starts a role and waits until it hangs."""
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    found = Process.find(child.pid)
    assert found
    yield found
    child.kill()
    child.wait()
    child.stdout.close()


def stop(process: Process) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert process.stopped


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Process]:
    """A role whose main thread computes forever."""
    with started(HANGING, str(tmp_path)) as process:
        yield process


async def test_a_hanging_role_dumps_the_stacks_of_its_threads(hanging: Process, tmp_path: Path) -> None:
    assert "hanging_step (<string>:" in await stacks.stacks_of(hanging, tmp_path, "worker-0")


async def test_a_stopped_role_dumps_the_stacks_of_its_threads_as_it_continues(hanging: Process, tmp_path: Path) -> None:
    stop(hanging)
    assert "hanging_step (<string>:" in await stacks.stacks_of(hanging, tmp_path, "worker-0")


async def test_a_role_that_was_not_started_to_listen_gets_no_signal(hanging: Process, tmp_path: Path) -> None:
    missing = "no stacks: the process has not started to listen for the signal"
    assert await stacks.stacks_of(hanging, tmp_path / "other", "worker-0") == missing
    assert hanging.lives


async def until_dumped(folder: Path, function: str, age_seconds: float) -> str:
    """Reads the stacks until a function is among them."""
    async with asyncio.timeout(30.0):
        while function not in (found := await stacks.last_stacks(folder, "worker-0", age_seconds)):
            await asyncio.sleep(0.05)
        return found


@pytest.mark.long
@pytest.mark.parametrize("step", ["waiting_step", "holding_step"])
async def test_a_role_without_signals_dumps_its_stacks_even_if_its_event_loop_cannot_run(
    tmp_path: Path, step: str
) -> None:
    with started(DUMPING, str(tmp_path), step):
        found = await until_dumped(tmp_path, step, 60.0)
    assert found.count(step) == 1, "only the last dump is read"


@pytest.mark.long
async def test_stacks_from_before_the_last_progress_are_none(tmp_path: Path) -> None:
    with started(DUMPING, str(tmp_path), "waiting_step") as process:
        await until_dumped(tmp_path, "waiting_step", 60.0)
        stop(process)
        age_seconds = time.time() - stacks.stacks_file(tmp_path, "worker-0").stat().st_mtime
        assert await stacks.last_stacks(tmp_path, "worker-0", age_seconds / 2) == NONE


async def test_a_role_that_dumps_regularly_fills_no_folder(tmp_path: Path) -> None:
    dumping = asyncio.create_task(stacks.dump_regularly(tmp_path, "worker-0", 0.06))
    sizes = set()
    for _ in range(50):
        await asyncio.sleep(0.01)
        sizes.add(stacks.stacks_file(tmp_path, "worker-0").stat().st_size)
    dumping.cancel()
    await asyncio.gather(dumping, return_exceptions=True)
    assert max(sizes) < stacks.LONGEST_DUMP_BYTES


def link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text('Thread 0x1 (most recent call first):\n  File "/secret.py", line 1 in secret\n')
    path.symlink_to(target)


@pytest.mark.parametrize("replace", [link, os.mkfifo, Path.mkdir])
async def test_a_file_that_user_code_has_replaced_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(stacks, "DUMP_SECONDS", 0.1)
    replace(stacks.stacks_file(tmp_path, "worker-0"))
    assert await stacks.last_stacks(tmp_path, "worker-0", 60.0) == NONE


async def test_a_signal_empties_no_file_that_a_link_names(hanging: Process, tmp_path: Path) -> None:
    path = stacks.stacks_file(tmp_path, "worker-0")
    path.unlink()
    link(path)
    assert "no stacks" in await stacks.stacks_of(hanging, tmp_path, "worker-0")
    assert path.read_text()


def test_own_stacks_name_the_caller() -> None:
    assert "test_own_stacks_name_the_caller (liveness/test_stacks.py:" in stacks.own_stacks()


def test_control_characters_of_a_dump_are_escaped() -> None:
    dump = 'Thread 0x1 (most recent call first):\n  File "/a/b.py", line 1 in f\x1b[2J\n'
    assert stacks.condensed(dump) == "f\\x1b[2J (a/b.py:1)"


def test_a_dump_is_condensed_to_one_line_with_the_innermost_frame_first() -> None:
    dump = (
        'Thread 0x1 (most recent call first):\n  File "/a/b/env.py", line 7 in step\n  File "/a/c.py", line 1 in run\n'
        '\nCurrent thread 0x2 (most recent call first):\n  File "/x/y/main.py", line 3 in <module>\n'
    )
    assert stacks.condensed(dump) == "step (b/env.py:7) < run (a/c.py:1) | <module> (y/main.py:3)"


def test_a_long_dump_is_cut() -> None:
    thread = 'Thread 0x1 (most recent call first):\n  File "/a/b.py", line 1 in ' + "f" * 500 + "\n"
    assert len(stacks.condensed(thread * 100)) <= stacks.LONGEST_STACKS_CHARACTERS + 3
