"""Runs `agentpod inspect` in a child process: the orchestrator itself imports neither torch nor user code."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from podrace.errors import DeadlineExceeded, FieldViolation, Unavailable
from podrace.limits.config import Allowed, command_settings
from podrace.limits.user_environment import user_environment
from podrace.tasks import cancel_all
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LONGEST_SECONDS = 60.0
"""A simulator may have to compile."""
EXTRA_MEMORY_BYTES = 2 << 30
"""What the process may allocate beyond `pod.memory_bytes`, for torch and its libraries."""
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
LARGEST_OUTPUT_BYTES = 1 << 20
"""Most bytes that the child may write to each of its outputs."""
READ_BYTES = 1 << 16
LAST_LINE_BYTES = 300


async def inspect(
    spec: TournamentSpec,
    allowed: Allowed,
    environ: Mapping[str, str],
    *,
    user_id: int = 0,
    seconds: float = LONGEST_SECONDS,
) -> list[FieldViolation]:
    """Returns what makes a specification unusable on this machine.

    Args:
        spec: Resolved specification.
        allowed: What it may name.
        environ: The environment of this process, from which the child gets what user code may have.
        user_id: User of the child when it runs user code; 0: that of this process.
        seconds: Time limit; the child and all that it started is killed then.

    Raises:
        Unavailable: The child exited without an answer, or was killed because it printed too much; the message says
            how.
        DeadlineExceeded: It did not answer in time.
    """
    settings = {"memory_bytes": spec.pod.memory_bytes + EXTRA_MEMORY_BYTES, **command_settings(allowed)}
    settings |= {"user_id": user_id} if user_id else {}
    overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "agentpod", "inspect", *overrides]
    child = _start(command, {**_environment(environ, allowed), **WITHOUT_GPUS}, spec.SerializeToString())
    try:
        async with asyncio.timeout(seconds):
            output, errors = await _communicate(child)
    except TimeoutError:
        raise DeadlineExceeded(f"the environment was not made within {seconds:g} s") from None
    finally:
        # The group may have members that outlive their leader. It is killed before the leader is reaped: afterwards,
        # another process group may have its number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.wait)
    try:
        return [FieldViolation(str(field), str(problem)) for field, problem in json.loads(output)]
    except ValueError:
        raise Unavailable(_death(child.returncode, errors)) from None


def _start(command: Sequence[str], environ: Mapping[str, str], content: bytes) -> "subprocess.Popen[bytes]":
    """Starts a child that leads a process group and reads `content`; asyncio would reap it as soon as it exits."""
    with os.fdopen(os.memfd_create("specification"), "w+b") as file:
        file.write(content)
        file.seek(0)
        return subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )


async def _communicate(child: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Waits until a child has exited, without reaping it, and returns what it has written.

    Raises:
        Unavailable: It writes too much.
    """
    assert child.stdout is not None
    assert child.stderr is not None
    reading = [asyncio.ensure_future(_read(pipe)) for pipe in (child.stdout, child.stderr)]
    try:
        output, errors = await asyncio.gather(*reading)
    finally:
        await cancel_all(*reading)
    exited, loop = asyncio.Event(), asyncio.get_running_loop()
    descriptor = os.pidfd_open(child.pid)
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return output, errors


async def _read(pipe: IO[bytes]) -> bytes:
    """Reads an output to its end.

    Raises:
        Unavailable: It has more than LARGEST_OUTPUT_BYTES.
    """
    reader, content = asyncio.StreamReader(), bytearray()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while chunk := await reader.read(READ_BYTES):
            content += chunk
            if len(content) > LARGEST_OUTPUT_BYTES:
                raise Unavailable(f"its process printed more than {LARGEST_OUTPUT_BYTES} bytes while it was made")
    finally:
        transport.close()
    return bytes(content)


def _environment(environ: Mapping[str, str], allowed: Allowed) -> dict[str, str]:
    passed = user_environment(environ, allowed)
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, [passed.get("PYTHONPATH", ""), *sys.path]))}


def _death(code: int | None, errors: bytes) -> str:
    """Describes how a child exited that printed no answer."""
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited with code {code}"
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    detail = f": {lines[-1][:LAST_LINE_BYTES]}" if lines else ""
    return f"the process that made the environment {how}{detail}"
