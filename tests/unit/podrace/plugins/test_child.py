"""The supervised child process: nothing that it starts outlives it, and the event loop never waits for it."""

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from podrace.errors import FailedPrecondition, Unavailable
from podrace.limits.config import EVERYTHING
from podrace.plugins import child
from podrace.plugins.child import ChildConnection, describe_exit


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[ChildConnection]:
    """Starts a program that writes the pid of its own child process to a file, and crashes on request."""
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
    made = connect(tmp_path, str(program))
    yield made
    await made.close()


def connect(folder: Path, program: str, start_seconds: float = 60.0) -> ChildConnection:
    return ChildConnection(
        [program],
        {"address": "python:module:function"},
        lifeline=folder / "lifeline",
        socket_prefix=folder / "function",
        start_seconds=start_seconds,
        allowed=EVERYTHING,
    )


@pytest.fixture
async def grandchild(connection: ChildConnection, tmp_path: Path) -> AsyncIterator[int]:
    """A descriptor of the process that the child started."""
    connection.start()
    assert connection.process is not None
    while not (tmp_path / "child").exists():
        assert connection.process.exit_code() is None
    descriptor = os.pidfd_open(int((tmp_path / "child").read_text()))
    yield descriptor
    if not has_exited(descriptor, 0.0):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)


def has_exited(descriptor: int, seconds: float = 5.0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


async def test_the_processes_of_a_child_are_killed_when_it_crashes(
    connection: ChildConnection, grandchild: int, tmp_path: Path
) -> None:
    process = connection.process
    assert process is not None
    assert process.exit_code() is None
    (tmp_path / "crash").write_text("now")
    assert await process.wait(10.0) == -signal.SIGSEGV
    assert has_exited(grandchild), "it outlives the process that started it"
    assert process.exit_code() == -signal.SIGSEGV
    await connection.close()


async def test_the_processes_of_a_child_are_killed_when_it_is_closed(
    connection: ChildConnection, grandchild: int
) -> None:
    await connection.close()
    assert has_exited(grandchild)
    assert connection.process is None


async def test_the_event_loop_runs_while_a_killed_child_is_waited_for(
    connection: ChildConnection, grandchild: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection.process is not None
    pid = connection.process.pid
    # A process that a driver holds exits late: here it is killed from the event loop, while `close` waits.
    monkeypatch.setattr(child, "_kill_group", lambda leader: None)
    asyncio.get_running_loop().call_later(0.05, os.kill, pid, signal.SIGKILL)
    await connection.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_child_that_exits_is_reaped_without_being_asked_for(
    connection: ChildConnection, grandchild: int, tmp_path: Path
) -> None:
    assert connection.process is not None
    (tmp_path / "crash").write_text("now")
    async with asyncio.timeout(10):
        while Path(f"/proc/{connection.process.pid}").exists():
            await asyncio.sleep(0.01)
    assert has_exited(grandchild)


async def test_a_child_is_started_once_and_again_after_it_failed(
    connection: ChildConnection, grandchild: int, tmp_path: Path
) -> None:
    first = connection.process
    connection.start()
    assert connection.process is first
    assert first is not None
    (tmp_path / "crash").write_text("now")
    await first.wait(10.0)
    with pytest.raises(FailedPrecondition, match="its process was killed by SIGSEGV before it served") as caught:
        await connection.ready(5.0)
    await connection.failed(caught.value)
    connection.start()
    assert connection.process not in (first, None)
    await connection.close()


async def test_a_child_that_does_not_serve_in_time_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "sleeping"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o700)
    slow = connect(tmp_path, str(program), start_seconds=0.05)
    with pytest.raises(Exception, match=r"its process did not serve within 0\.\d s") as caught:
        await slow.ready(60.0)
    await slow.failed(caught.value)
    assert slow.process is None


async def test_a_child_that_is_still_starting_is_kept_for_the_next_attempt(tmp_path: Path) -> None:
    program = tmp_path / "sleeping"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o700)
    slow = connect(tmp_path, str(program))
    with pytest.raises(Exception, match="did not serve within") as caught:
        await slow.ready(0.05)
    await slow.failed(caught.value)
    assert slow.process is not None
    await slow.close()


class Channel:
    """A channel that is closed when a test allows it."""

    def __init__(self) -> None:
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()


class Serving:
    """Replaces the health checks of a child: a test decides when it serves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.made: list[Channel] = []
        self.checked, self.serves = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(child, "_listens", self._listens)
        monkeypatch.setattr(child.rpc, "wait_until_serving", self._wait_until_serving)
        monkeypatch.setattr(child.rpc, "connect", self._connect)
        program = folder / "sleeping"
        program.write_text("#!/bin/sh\nexec sleep 1000\n")
        program.chmod(0o700)
        self.connection = connect(folder, str(program))

    async def _listens(self, path: Path) -> bool:
        return True

    async def _wait_until_serving(self, *_: object, **__: object) -> None:
        self.checked.set()
        await self.serves.wait()

    def _connect(self, *_: object, **__: object) -> Channel:
        self.made.append(Channel())
        return self.made[-1]


@pytest.fixture
async def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Serving]:
    made = Serving(monkeypatch, tmp_path)
    yield made
    for channel in made.made:
        channel.may_close.set()
    await made.connection.close()


async def test_concurrent_calls_share_the_channel(serving: Serving) -> None:
    calls = [asyncio.create_task(serving.connection.ready(60.0)) for _ in range(3)]
    await serving.checked.wait()
    serving.serves.set()
    channels = await asyncio.gather(*calls)
    assert len(serving.made) == 1, "the others are never closed"
    assert channels == serving.made * 3


async def test_a_call_does_not_connect_to_a_process_that_was_killed_meanwhile(serving: Serving) -> None:
    call = asyncio.create_task(serving.connection.ready(60.0))
    await serving.checked.wait()
    await serving.connection.close()
    serving.serves.set()
    with pytest.raises(FailedPrecondition, match="its process was killed by SIGKILL before it served"):
        await call
    assert not serving.made


async def test_the_socket_of_the_next_process_is_kept_while_the_previous_one_is_closed(
    serving: Serving, tmp_path: Path
) -> None:
    serving.serves.set()
    await serving.connection.ready(60.0)
    closing = asyncio.create_task(serving.connection.close())
    await serving.made[0].closing.wait()
    (tmp_path / "function-1.sock").touch()
    serving.connection.start()
    (tmp_path / "function-2.sock").touch()
    serving.made[0].may_close.set()
    await closing
    assert [path.name for path in tmp_path.glob("*.sock")] == ["function-2.sock"]


async def test_a_program_that_cannot_be_started_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="its process cannot be started: No such file or directory"):
        connect(tmp_path, str(tmp_path / "absent")).start()


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exited with code 0"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99")]
)
def test_the_end_of_a_process_is_described_by_its_code(code: int, text: str) -> None:
    assert describe_exit(code) == text
