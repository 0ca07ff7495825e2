"""Owns the connection to the nursery: the parent that forks pods, started when it is not there. Knows nothing of pods.

One JSON object a line, in and out; one order at a time.
"""

import asyncio
import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from orchestrator.launchers.log_tail import last_line
from podrace.errors import Unavailable
from podrace.processes.identity import Process

APPEAR_SECONDS = 60.0
"""A nursery imports torch before it listens."""
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.05
EXIT_TIMEOUT_SECONDS = 5.0
REAP_SECONDS = 1.0
CREDENTIALS = struct.Struct("3i")
"""Linux' struct ucred: pid, user, group."""

_log = structlog.get_logger(__name__)


class ForkServerClient:
    """Whoever forks the pods.

    nursery = ForkServerClient(folder / "nursery.sock", log_path, lifeline="")
    answer = await nursery.order({"pod": {...}})
    await nursery.close(dismiss=True)
    """

    def __init__(self, path: Path, log_path: Path, *, lifeline: str) -> None:
        """Neither connects nor starts anything yet."""
        self._path, self._log_path, self._lifeline = path, log_path, lifeline
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._peer: Process | None = None
        self._turn = asyncio.Lock()

    async def send_request(self, send_request: Mapping[str, Any]) -> dict[str, Any]:
        """Gives an order and returns the answer.

        Raises:
            Unavailable: The nursery cannot be started, or does not answer.
        """
        async with self._turn:
            answer = None
            try:
                reader, writer = await self._connect()
                writer.write(json.dumps(send_request).encode() + b"\n")
                answer = json.loads(await asyncio.wait_for(reader.readline(), ANSWER_SECONDS))
            except (OSError, ValueError, TimeoutError) as error:
                raise Unavailable(
                    f"the nursery at {self._path} does not answer ({type(error).__name__}); see {self._log_path}"
                ) from None
            finally:
                # An answer that comes too late must not be taken for that to the next order.
                if answer is None:
                    self._hang_up()
            return dict(answer)

    async def close(self, *, stop_server: bool) -> None:
        """Hangs up; `dismiss` also ends the nursery, which has no children any more."""
        forkserver = await self._find_process() if stop_server else None
        self._hang_up()
        if forkserver:
            forkserver.signal(signal.SIGTERM)
            if not await forkserver.ended(EXIT_TIMEOUT_SECONDS):
                forkserver.signal(signal.SIGKILL)
            self._path.unlink(missing_ok=True)
        if self._child:
            # Reaps it if it has ended; one that goes on is nobody's business here any more.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(REAP_SECONDS if stop_server else 0)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection that is open, or a new one, if need be to a new nursery."""
        if self._connection and self._peer and self._peer.lives:
            return self._connection
        self._hang_up()
        await self._dial()
        if self._connection is None and (self._child is None or self._child.poll() is not None):
            self._spawn()
        deadline = asyncio.get_running_loop().time() + APPEAR_SECONDS
        while self._connection is None:
            if self._child is None or self._child.poll() is not None:
                raise Unavailable(f"the nursery ended at once: {last_line(self._log_path)}; see {self._log_path}")
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"the nursery did not listen within {APPEAR_SECONDS:g} s; see {self._log_path}")
            await asyncio.sleep(POLL_SECONDS)
            await self._dial()
        return self._connection

    async def _dial(self) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._path))
        except OSError:
            return
        peer = writer.get_extra_info("socket")
        pid, _, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        self._connection, self._peer = (reader, writer), Process.find(pid)

    def _spawn(self) -> None:
        settings = [f"socket={self._path}", *([f"lifeline={self._lifeline}"] if self._lifeline else [])]
        command = [sys.executable, "-m", "agentpod", "forkserver"]
        for setting in settings:
            command += ["--set", setting]
        with self._log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        _log.info("nursery started", pid=self._child.pid)

    async def _find_process(self) -> Process | None:
        """The nursery's process, whoever started it."""
        if self._connection is None:
            await self._dial()
        if self._connection is None and self._child and self._child.poll() is None:
            # It does not listen yet.
            return Process.find(self._child.pid)
        return self._peer

    def _hang_up(self) -> None:
        if self._connection:
            self._connection[1].close()
        self._connection = self._peer = None
