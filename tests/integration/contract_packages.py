"""Builds the released packages of the contracts, and starts the services that their users call."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 60.0


def build(folder: Path) -> Path:
    """Builds what `make contracts` builds, and returns the folder."""
    done = subprocess.run(
        [sys.executable, "deploy/contracts.py", str(folder)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def package(folder: Path, suffix: str) -> Path:
    """Returns the only file of the folder with a suffix."""
    (found,) = folder.glob(f"*{suffix}")
    return found


@contextmanager
def services(folder: Path, *options: str) -> Iterator[str]:
    """Starts a leaderboard and an orchestrator that exchange files in a folder; yields the orchestrator's address."""
    common = ["--set", f"store=folder://{folder}/store", *options]
    addresses = {name: f"unix:{folder}/{name}.sock" for name in ("leaderboard", "orchestrator")}
    more = [f"leaderboard={addresses['leaderboard']}", f"runtime_folder={folder}/run"]
    started = []
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    try:
        for name, address in addresses.items():
            own = [f"server.listen={address}", f"database={folder}/{name}.sqlite"]
            own += more if name == "orchestrator" else []
            command = [sys.executable, "-m", name, *common, *(part for one in own for part in ("--set", one))]
            with (folder / f"{name}.log").open("w") as log:
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        _wait_for_sockets(folder, list(addresses), started)
        yield addresses["orchestrator"]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def _wait_for_sockets(folder: Path, names: list[str], started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all((folder / f"{name}.sock").exists() for name in names):
        logs = [(folder / f"{name}.log").read_text() for name in names]
        assert all(process.poll() is None for process in started), logs
        assert time.monotonic() < deadline, logs
        time.sleep(0.05)
