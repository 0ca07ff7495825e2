"""Environments of their own for client libraries that need another protobuf than podrace."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

SECONDS = 300.0


async def output_of(*command: str | Path) -> tuple[int, str, str]:
    """Runs a program outside the environment of the tests; returns its exit status, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    printed, log = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode or 0, printed.decode(), log.decode()


async def python_with(requirement: str, variable: str, folder: Path) -> Path:
    """Returns the Python of a new environment with a requirement, or the one that a variable names."""
    if found := os.environ.get(variable):
        return Path(found)
    await output_of(sys.executable, "-m", "venv", folder)
    code, _, log = await output_of(folder / "bin/python", "-m", "pip", "install", "--quiet", requirement)
    if code:
        pytest.skip(f"{requirement} cannot be installed here: {log.strip().splitlines()[-1]}")
    return folder / "bin/python"
