"""The process in which a pod calls a user's evaluation function, as the head of the pod sees it."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from agentpod.config import PodConfig

EXIT_WAIT_SECONDS = 5.0


class FunctionProcess:
    """Started when it is wanted, and anew after whatever went wrong.

    process = FunctionProcess(config, "module:function")
    process.start("cpu")                 # at once; it takes seconds to serve at process.socket
    ...
    await process.end()

    Attributes:
        socket: Where it answers.
    """

    def __init__(self, config: PodConfig, function: str) -> None:
        """Starts nothing yet."""
        self._config, self._function = config, function
        self._process: subprocess.Popen[bytes] | None = None
        self.socket: Path = config.folder / "function.sock"

    def start(self, device: str) -> None:
        """Starts it unless it runs; raises OSError where the machine has no room for it."""
        if not self.ended():
            return
        settings = {
            "function": self._function,
            "socket": self.socket,
            "lifeline": self._config.leader_lifeline,
            "threads": self._config.threads,
            "device": device,
            "telemetry.log_format": self._config.telemetry.log_format,
            "telemetry.log_level": self._config.telemetry.log_level,
        }
        arguments = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
        # What the head could import, it can.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentpod", "evaluation-function", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            # What the function starts can be killed with it.
            start_new_session=True,
        )

    def ended(self, wait_seconds: float = 0.0) -> str:
        """How it ended, in words, as soon as that is known; empty while it runs. What it had started goes with it."""
        if self._process is None:
            return "its process was not started"
        code = _reap(self._process, wait_seconds)
        if code is None:
            return ""
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    async def end(self) -> None:
        """Kills it with all it has started, whatever it does, and waits for it at most EXIT_WAIT_SECONDS.

        Within a call of a driver it may go later; then nobody waits for it.
        """
        process, self._process = self._process, None
        if process and process.returncode is None:
            _kill_group(process.pid)
            await asyncio.to_thread(_reap, process, EXIT_WAIT_SECONDS)


def _reap(process: subprocess.Popen[bytes], wait_seconds: float) -> int | None:
    """The exit code of a process that ends within so long, after which nothing runs any more that it had started."""
    if process.returncode is None and _ends(process.pid, wait_seconds):
        # Only then is it reaped: until it is, no other group can have its number.
        _kill_group(process.pid)
        process.wait()
    return process.returncode


def _ends(pid: int, wait_seconds: float) -> bool:
    """Whether a child ends within so long; it is left to be reaped."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ending = select.poll()
        ending.register(descriptor, select.POLLIN)
        return bool(ending.poll(1000 * wait_seconds))
    finally:
        os.close(descriptor)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
