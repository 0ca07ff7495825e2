"""Runs `agentpod inspect` in a child process: the orchestrator itself imports neither torch nor user code."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping

from podrace.errors import DeadlineExceeded, FieldViolation, Unavailable
from podrace.limits.config import Allowed, command_settings
from podrace.limits.user_environment import user_environment
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LONGEST_SECONDS = 60.0
"""A simulator may have to compile."""
EXTRA_MEMORY_BYTES = 2 << 30
"""What the process may allocate beyond `pod.memory_bytes`, for torch and its libraries."""
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
LARGEST_ANSWER_BYTES = 1 << 20
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
        Unavailable: The child exited without an answer; the message says how.
        DeadlineExceeded: It did not answer in time.
    """
    settings = {"memory_bytes": spec.pod.memory_bytes + EXTRA_MEMORY_BYTES, **command_settings(allowed)}
    settings |= {"user_id": user_id} if user_id else {}
    overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentpod", "inspect", *overrides),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**_environment(environ, allowed), **WITHOUT_GPUS},
        start_new_session=True,
        limit=LARGEST_ANSWER_BYTES,
    )
    try:
        async with asyncio.timeout(seconds):
            output, errors = await child.communicate(spec.SerializeToString())
    except TimeoutError:
        raise DeadlineExceeded(f"the environment was not made within {seconds:g} s") from None
    finally:
        # The group may have members that outlive their leader.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
    try:
        return [FieldViolation(str(field), str(problem)) for field, problem in json.loads(output)]
    except ValueError:
        raise Unavailable(_death(child.returncode, errors)) from None


def _environment(environ: Mapping[str, str], allowed: Allowed) -> dict[str, str]:
    passed = user_environment(environ, allowed)
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, [passed.get("PYTHONPATH", ""), *sys.path]))}


def _death(code: int | None, errors: bytes) -> str:
    """Describes how a child exited that printed no answer."""
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited with code {code}"
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    detail = f": {lines[-1][:LAST_LINE_BYTES]}" if lines else ""
    return f"the process that made the environment {how}{detail}"
