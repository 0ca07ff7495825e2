"""Runs the gateway of a dashboard as a process, which a test can kill and start again on the same port."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass
class GatewayProcess:
    """The dashboard of one mesh."""

    folder: Path
    address: str
    elsewhere: bool = False
    """Whether it is `podrace dashboard --orchestrator`, which has no files of the mesh."""
    sign_in: bool = False
    """Whether each person signs in."""
    port: int = 0
    url: str = ""
    """URL with the token, after `start`."""
    process: subprocess.Popen[str] | None = field(default=None)

    def start(self) -> None:
        """Starts it on a free port, or again on the port that it had."""
        listen = f"127.0.0.1:{self.port}"
        command = [str(Path(__file__).with_name("home_gateway.py")), self.address, listen, str(self.folder)]
        if self.elsewhere:
            command = ["-m", "podrace.cli", "dashboard", "--orchestrator", self.address, "--listen", listen]
            command += ["--sign-in"] if self.sign_in else ["--token-file", str(self.folder / "token")]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), self.url
        self.port = int(self.url.partition("/?")[0].rstrip("/").rpartition(":")[2])

    def kill(self) -> None:
        """Kills it, as a crash would."""
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def resident_bytes(self) -> int:
        """Memory of the process, in bytes."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
