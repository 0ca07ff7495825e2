"""Tests that a lifeline reports the exit of its holder."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrace.processes import lifeline


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:
        yield Path(folder) / "line"


async def test_a_lifeline_is_lost_when_the_block_ends(path):
    with lifeline.hold(path):
        waiting = asyncio.create_task(lifeline.lost(path))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    assert "was lost" in await waiting
    assert not path.exists()


async def test_all_peers_detect_a_killed_holder(path):
    script = f"""
import pathlib, signal
from podrace.processes import lifeline
with lifeline.hold(pathlib.Path({str(path)!r})):
    print(flush=True)
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        waiting = [asyncio.create_task(lifeline.lost(path)) for _ in range(40)]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        os.kill(holder.pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            assert all("was lost" in reason for reason in await asyncio.gather(*waiting))


async def test_a_missing_lifeline_is_lost_at_once(path):
    assert "did not appear" in await lifeline.lost(path)


async def test_a_lifeline_that_appears_in_time_is_waited_for(path):
    waiting = asyncio.create_task(lifeline.lost(path, appear_seconds=5))
    await asyncio.sleep(0)
    with lifeline.hold(path):
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    assert "was lost" in await waiting


async def test_many_peers_can_attach_and_detach(path):
    with lifeline.hold(path):
        for _ in range(2000):
            descriptor = lifeline.attach(path)
            assert descriptor is not None
            os.close(descriptor)
        waiting = asyncio.create_task(lifeline.lost(path))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
    assert "was lost" in await waiting


async def test_the_pipe_of_a_dead_holder_is_lost_and_can_be_replaced(path):
    os.mkfifo(path)
    assert "did not appear" in await lifeline.lost(path)
    with lifeline.hold(path):
        assert lifeline.attach(path) is not None


def test_a_lifeline_is_held_before_it_appears(path, monkeypatch):
    seen = []

    def recorded(*arguments):
        seen.append(path.exists())
        return opened(*arguments)

    opened = os.open
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", recorded)
        with lifeline.hold(path):
            assert seen == [False]
            descriptor = lifeline.attach(path)
    assert descriptor is not None
    os.close(descriptor)
    assert not list(path.parent.iterdir())
