"""Provides a new home for each test and kills the processes that a failed test left."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from homes import Home


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="podrace-e2e-") as folder:
        home = Home(Path(folder) / "home")
        yield home
        for process in home.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        # Only a failed test leaves processes.
        for pid in home.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
