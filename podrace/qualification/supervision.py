"""Runs the parts of a qualification one after another, each in its own process.

A part may crash, hang in the driver or exhaust the memory of the GPU. The next one then starts in a new process, and
the report says what happened.
"""

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from podrace.errors import FailedPrecondition
from podrace.printable import printable
from podrace.processes import lifeline
from podrace.qualification.findings import Finding, Grade, from_json
from podrace.qualification.parts import limit_of

LINE_BYTES = 1 << 20
"""Longest line that a part may write."""
LAST_LINES = 40
"""Number of lines of its log that are kept, to explain its end."""


@dataclass(frozen=True)
class Request:
    """What to run."""

    parts: Sequence[str]
    """Names of the parts, in order."""
    quick: bool = False
    """Whether to measure for a shorter time."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of agentpod.qualification.config.QualificationConfig."""
    debug: bool = False
    """Whether to show the logs of the parts."""


def check_installed(command: str = "qualify") -> None:
    """Checks that the parts can run here.

    Args:
        command: Command of podrace that needs them, for the message.

    Raises:
        FailedPrecondition: This environment has no agentpod or no PyTorch.
    """
    missing = [name for name in ("agentpod", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise FailedPrecondition(
            f"{command}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here; run it"
            " where pods run: in the image podrace/agentpod-cuda13 or podrace/agentpod-cuda12, or after"
            " `make install-gpu`"
        )


async def run(request: Request, report: Callable[[Finding], None]) -> list[Finding]:
    """Runs all parts and returns what they found.

    Args:
        request: What to run.
        report: Called with each finding as soon as it is known.
    """
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="podrace-") as name:
        held = Path(name) / "lifeline"
        with lifeline.hold(held):
            for part in request.parts:
                folder = Path(name) / part
                folder.mkdir(mode=0o700)
                async for finding in run_part(command_of(part, request, folder, held), part, request):
                    findings.append(finding)
                    report(finding)
    return findings


def command_of(part: str, request: Request, folder: Path, held: Path) -> list[str]:
    """Returns the command line of the process of a part."""
    settings = {
        "part": part,
        "quick": str(request.quick).lower(),
        "folder": str(folder),
        "lifeline": str(held),
        **request.settings,
    }
    overrides = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "agentpod", "qualify-part", *overrides]


async def run_part(command: Sequence[str], part: str, request: Request) -> AsyncIterator[Finding]:
    """Yields the findings of a part, and a failure if its process did not end by itself without an error."""
    limit, count, late = _limit(part, request), 0, False
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
        # A separate process group, which is killed with everything that the part started.
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log = asyncio.ensure_future(_log_of(process.stderr, show=request.debug))
    try:
        async with asyncio.timeout(limit):
            async for line in process.stdout:
                with contextlib.suppress(ValueError):
                    yield from_json(line.decode())
                    count += 1
            await process.wait()
    except TimeoutError:
        late = True
    finally:
        _kill_group(process.pid)
        await process.wait()
        lines = await log
    if late or process.returncode or not count:
        yield failure(part, process.returncode, lines, limit if late else None)


def _limit(part: str, request: Request) -> float:
    return limit_of(part, quick=request.quick, launcher="orchestrator" in request.settings)


def failure(part: str, code: int | None, lines: Sequence[str], limit_seconds: float | None) -> Finding:
    """Returns the finding about a part whose process failed. Pure.

    Args:
        part: Name of the part.
        code: Its exit code; negative: the signal that ended it.
        lines: The last lines of its log.
        limit_seconds: The time limit, if it was exceeded.
    """
    if limit_seconds is not None:
        what = f"took longer than {limit_seconds:g} s"
    elif code and code < 0:
        what = f"was ended by {signal.Signals(-code).name}"
    else:
        what = f"exited with code {code}" if code else "reported nothing"
    last = lines[-1].removeprefix("error: ") if lines else ""
    remedy = f"run `podrace qualify --part {part} --debug` and read its log"
    return Finding(part, "process", Grade.FAIL, f"{what}: {last}" if last else what, remedy=remedy)


async def _log_of(stream: asyncio.StreamReader, *, show: bool) -> list[str]:
    last: deque[str] = deque(maxlen=LAST_LINES)
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            # Longer than LINE_BYTES; the rest of it follows.
            continue
        if not line:
            return list(last)
        text = printable(line.decode(errors="replace").rstrip())
        if show:
            print(text, file=sys.stderr)
        if text.strip():
            last.append(text)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
