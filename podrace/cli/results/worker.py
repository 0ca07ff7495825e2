"""Runs a module that imports torch in a child process, for commands that do not import it."""

import asyncio
import sys
from pathlib import Path

from podrace.errors import FailedPrecondition

SECONDS = 600.0


async def run_module(module: str, folder: Path, *, command: str, seconds: float = SECONDS) -> bytes:
    """Runs `python -m MODULE FOLDER`, and returns the last line that it printed.

    Args:
        module: The module; it prints one JSON value, and errors as one line on stderr.
        folder: Folder with its request, and for its files.
        command: Command of podrace, for messages.
        seconds: Time limit.

    Raises:
        FailedPrecondition: It failed, or took longer; the message has its last line.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            printed, log = await process.communicate()
    except TimeoutError:
        raise FailedPrecondition(f"{command}: took longer than {seconds:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = (log.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise FailedPrecondition(f"{command}: {last.removeprefix('error: ')}")
    return printed.strip().splitlines()[-1]
