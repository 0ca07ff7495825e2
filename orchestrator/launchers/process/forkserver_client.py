"""Connects to the fork server, the process that forks pods, and starts it if it is not running.

The protocol is one JSON object per line in each direction, one request at a time.
"""

import asyncio
import contextlib
import json
import os
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
from podrace.errors import FailedPrecondition, Unavailable
from podrace.processes.identity import Process
from podrace.processes.log_rotation import open_log

APPEAR_SECONDS = 60.0
"""Time for the fork server to start listening; it imports torch first."""
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.05
EXIT_TIMEOUT_SECONDS = 5.0
REAP_SECONDS = 1.0
PEER_CREDENTIALS = struct.Struct("3i")
"""Linux struct ucred: process id, user id, group id."""

_log = structlog.get_logger(__name__)


class ForkServerClient:
    """Connection to the fork server.

    forkserver = ForkServerClient(folder / "forkserver.sock", log_path, lifeline="", environ=environ)
    answer = await forkserver.send_request({"pod": {...}})
    await forkserver.close(stop_server=True)
    """

    def __init__(self, path: Path, log_path: Path, *, lifeline: str, environ: Mapping[str, str]) -> None:
        """Creates the client; it connects with the first request.

        Args:
            path: Socket of the fork server.
            log_path: Its log.
            lifeline: See ForkServerConfig of pods.
            environ: Environment variables of the fork server, which all roles of all pods inherit.
        """
        self._path, self._log_path, self._lifeline, self._environ = path, log_path, lifeline, environ
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._peer: Process | None = None
        self._lock = asyncio.Lock()

    async def send_request(self, request: Mapping[str, Any], secrets: bytes = b"") -> dict[str, Any]:
        """Sends a request and returns the answer.

        Args:
            request: What the fork server reads.
            secrets: What the leader of the pod alone reads. The fork server passes it on as a file descriptor.

        Raises:
            FailedPrecondition: The fork server exits.
            Unavailable: It does not answer.
        """
        async with self._lock:
            answer = None
            try:
                reader, writer = await self._connect()
                _send(writer, json.dumps(request).encode() + b"\n", secrets)
                answer = json.loads(await asyncio.wait_for(reader.readline(), ANSWER_SECONDS))
            except (OSError, ValueError, TimeoutError) as error:
                raise Unavailable(
                    f"the fork server at {self._path} does not answer ({type(error).__name__}); see {self._log_path}"
                ) from None
            finally:
                # A late answer must not be taken for the answer to the next request.
                if answer is None:
                    self._hang_up()
            return dict(answer)

    async def close(self, *, stop_server: bool) -> None:
        """Closes the connection; with `stop_server`, also stops the fork server, which must have no children."""
        forkserver = await self._find_process() if stop_server else None
        self._hang_up()
        if forkserver:
            forkserver.signal(signal.SIGTERM)
            if not await forkserver.ended(EXIT_TIMEOUT_SECONDS):
                forkserver.signal(signal.SIGKILL)
            self._path.unlink(missing_ok=True)
        if self._child:
            # Reaps it if it has exited; otherwise it keeps running.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(REAP_SECONDS if stop_server else 0)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the open connection, or opens one, starting the fork server if needed."""
        if self._connection and self._peer and self._peer.lives:
            return self._connection
        self._hang_up()
        await self._dial()
        if self._connection is None and (self._child is None or self._child.poll() is not None):
            self._spawn()
        deadline = asyncio.get_running_loop().time() + APPEAR_SECONDS
        while self._connection is None:
            if self._child is None or self._child.poll() is not None:
                line = last_line(self._log_path)
                raise FailedPrecondition(f"the fork server exited at once: {line}; see {self._log_path}")
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"the fork server did not listen within {APPEAR_SECONDS:g} s; see {self._log_path}")
            await asyncio.sleep(POLL_SECONDS)
            await self._dial()
        return self._connection

    async def _dial(self) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._path))
        except OSError:
            return
        peer = writer.get_extra_info("socket")
        pid, _, _ = PEER_CREDENTIALS.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        )
        self._connection, self._peer = (reader, writer), Process.find(pid)

    def _spawn(self) -> None:
        settings = [f"socket={self._path}", *([f"lifeline={self._lifeline}"] if self._lifeline else [])]
        command = [sys.executable, "-m", "agentpod", "forkserver"]
        for setting in settings:
            command += ["--set", setting]
        with open_log(self._log_path) as log:
            self._child = subprocess.Popen(
                command,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _log.info("fork server started", pid=self._child.pid)

    async def _find_process(self) -> Process | None:
        """Finds the process of the fork server, whichever process started it."""
        if self._connection is None:
            await self._dial()
        if self._connection is None and self._child and self._child.poll() is None:
            # It is not listening yet.
            return Process.find(self._child.pid)
        return self._peer

    def _hang_up(self) -> None:
        if self._connection:
            self._connection[1].close()
        self._connection = self._peer = None


def _send(writer: asyncio.StreamWriter, line: bytes, secrets: bytes) -> None:
    """Sends a line, with a descriptor of a file in memory that has the secrets, if there are any."""
    if not secrets:
        writer.write(line)
        return
    descriptor = os.memfd_create("podrace-secrets")
    try:
        os.write(descriptor, secrets)
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
            sent = socket.send_fds(connection, [line], [descriptor])
    finally:
        os.close(descriptor)
    writer.write(line[sent:])
