import os
import select
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podrace.errors import FailedPrecondition
from podrace.qualification import parts, supervision
from podrace.qualification.findings import Finding, Grade
from podrace.qualification.supervision import Request, check_installed, command_of, failure, run_part

PASSED = '{"part": "machine", "name": "GPU 0", "grade": "PASS"}'
REQUEST = Request(["machine"])


async def findings_of(script: str) -> list[Finding]:
    return [finding async for finding in run_part([sys.executable, "-c", script], "machine", REQUEST)]


async def test_a_part_reports_line_by_line_and_other_output_is_ignored() -> None:
    assert await findings_of(f"print('compiling'); print('''{PASSED}''')") == [Finding("machine", "GPU 0", Grade.PASS)]


async def test_a_crash_is_a_failure_with_the_last_line_of_the_log() -> None:
    first, last = await findings_of(f"import sys; print('''{PASSED}''', flush=True); sys.exit('error: out of memory')")
    assert first.grade == Grade.PASS
    assert (last.grade, last.measured) == (Grade.FAIL, "exited with code 1: out of memory")
    assert "--part machine --debug" in last.remedy


async def test_a_part_that_was_killed_is_a_failure() -> None:
    (found,) = await findings_of("import os; os.kill(os.getpid(), 11)")
    assert (found.grade, found.measured) == (Grade.FAIL, "was ended by SIGSEGV")


async def test_a_part_without_findings_is_a_failure() -> None:
    (found,) = await findings_of("pass")
    assert (found.grade, found.measured) == (Grade.FAIL, "reported nothing")


@pytest.mark.long
async def test_a_part_that_hangs_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = replace(parts.PARTS["machine"], limit_seconds=3.0)
    monkeypatch.setitem(parts.PARTS, "machine", short)  # type: ignore[arg-type]
    pid = tmp_path / "pid"
    script = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "child.wait()"
    )
    (found,) = await findings_of(script)
    assert (found.grade, found.measured) == (Grade.FAIL, "took longer than 3 s")
    if pid.exists():
        assert ended(int(pid.read_text()))


def ended(pid: int, *, within_seconds: float = 10.0) -> bool:
    """A process that was killed ends when the kernel next runs it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as process:
        return bool(select.select([process], [], [], within_seconds)[0])


def test_settings_reach_the_process_of_a_part() -> None:
    request = Request(["machine"], quick=True, settings={"gpus": "GPU-1"})
    command = command_of("machine", request, Path("/f"), Path("/l"))
    assert command[:4] == [sys.executable, "-m", "agentpod", "qualify-part"]
    assert {"part=machine", "quick=true", "folder=/f", "lifeline=/l", "gpus=GPU-1"} <= set(command)


def test_an_environment_without_torch_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision.importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(FailedPrecondition, match=r"torch is not installed here.*agentpod-cuda13"):
        check_installed()


def test_a_failure_names_the_limit_only_if_it_was_exceeded() -> None:
    assert "12 s" in failure("machine", -9, [], 12).measured
    assert failure("machine", -9, [], None).measured == "was ended by SIGKILL"


async def test_all_parts_run_and_each_has_an_empty_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def command(part: str, request: Request, folder: Path, held: Path) -> list[str]:
        assert os.listdir(folder) == []  # noqa: PTH208
        folders.append(folder)
        return [sys.executable, "-c", f"print('''{PASSED}''')"]

    monkeypatch.setattr(supervision, "command_of", command)
    reported: list[Finding] = []
    found = await supervision.run(Request(["machine", "planes"]), reported.append)
    assert found == reported
    assert len(found) == len(set(folders)) == 2
    assert not any(folder.exists() for folder in folders)
