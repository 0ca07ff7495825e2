"""The process in which a pod calls a user's evaluation function, as the head of the pod sees it."""

import os
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
    process.end()

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
        if self._process and self._process.poll() is None:
            return
        settings = {
            "function": self._function,
            "socket": self.socket,
            "lifeline": self._config.head_lifeline,
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
        """How it ended, in words, as soon as that is known; empty while it runs."""
        if self._process is None:
            return "its process was not started"
        try:
            code = self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            return ""
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def end(self) -> None:
        """Kills it with all it has started, whatever it does."""
        process, self._process = self._process, None
        if process and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            # Within a call of a driver it may go later; then nobody waits for it.
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_WAIT_SECONDS)
