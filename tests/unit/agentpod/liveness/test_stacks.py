import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Process]:
    """A role whose main thread computes forever."""
    child = subprocess.Popen([sys.executable, "-c", HANGING, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    found = Process.find(child.pid)
    assert found
    yield found
    child.kill()
    child.wait()
    child.stdout.close()


async def test_a_hanging_role_dumps_the_stacks_of_its_threads(hanging: Process, tmp_path: Path) -> None:
    assert "hanging_step (<string>:" in await stacks.stacks_of(hanging, tmp_path, "worker-0")


async def test_a_stopped_role_cannot_dump(hanging: Process, tmp_path: Path) -> None:
    os.kill(hanging.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, hanging.pid, os.WSTOPPED | os.WNOWAIT)
    assert hanging.stopped
    assert await stacks.stacks_of(hanging, tmp_path, "worker-0") == "no stacks: a stopped process cannot dump them"


def test_own_stacks_name_the_caller(tmp_path: Path) -> None:
    assert "test_own_stacks_name_the_caller (liveness/test_stacks.py:" in stacks.own_stacks(tmp_path, "learner")


def test_a_dump_is_condensed_to_one_line_with_the_innermost_frame_first() -> None:
    dump = (
        'Thread 0x1 (most recent call first):\n  File "/a/b/env.py", line 7 in step\n  File "/a/c.py", line 1 in run\n'
        '\nCurrent thread 0x2 (most recent call first):\n  File "/x/y/main.py", line 3 in <module>\n'
    )
    assert stacks.condensed(dump) == "step (b/env.py:7) < run (a/c.py:1) | <module> (y/main.py:3)"


def test_a_long_dump_is_cut() -> None:
    thread = 'Thread 0x1 (most recent call first):\n  File "/a/b.py", line 1 in ' + "f" * 500 + "\n"
    assert len(stacks.condensed(thread * 100)) <= stacks.LONGEST_STACKS_CHARACTERS + 3
