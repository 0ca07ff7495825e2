import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from podrace.cli.continuous import process
from podrace.cli.continuous.process import TrainingProcess
from podrace.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, InvalidArgument

HOLDER = """
import signal, sys, time
from pathlib import Path
from podrace.cli.continuous import process
{before}
with process.hold(Path(sys.argv[1]), "race") as lock:
    lock.ready()
    {then}
"""
WAITS = "signal.sigwait([signal.SIGTERM])"
BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"


def program(folder: Path, then: str = WAITS, before: str = BLOCKED) -> list[str]:
    return [sys.executable, "-c", HOLDER.format(then=textwrap.indent(then, "    ").strip(), before=before), str(folder)]


@pytest.fixture
def started() -> Iterator[list[TrainingProcess]]:
    """Background processes of a test, killed after it."""
    identities: list[TrainingProcess] = []
    yield identities
    for one in identities:
        if one.lives:
            os.kill(one.pid, signal.SIGKILL)


def reap(identity: TrainingProcess) -> None:
    """Waits for a background process, which is a child of the test process."""
    os.waitpid(identity.pid, 0)


def test_a_detached_process_is_found_and_has_its_own_session(tmp_path: Path, started: list[TrainingProcess]) -> None:
    found = process.detach(program(tmp_path), tmp_path, "race")
    started.append(found)
    assert process.running(tmp_path) == found
    assert os.getsid(found.pid) == found.pid != os.getsid(0)
    assert str(Path(f"/proc/{found.pid}/fd/0").readlink()) == os.devnull
    assert Path(f"/proc/{found.pid}/fd/1").readlink() == tmp_path / process.LOG
    assert process.stop(found, deadline_seconds=10) == ""
    reap(found)
    assert process.running(tmp_path) is None


def test_a_second_start_reports_the_running_process(tmp_path: Path, started: list[TrainingProcess]) -> None:
    started.append(process.detach(program(tmp_path), tmp_path, "race"))
    line = rf"race is running \(pid {started[0].pid}\)"
    with pytest.raises(AlreadyExists, match=line):
        process.check_free(tmp_path, "race")
    with pytest.raises(AlreadyExists, match=line), process.hold(tmp_path, "race"):
        raise AssertionError("there are two")
    process.stop(started[0], deadline_seconds=10)
    reap(started[0])
    with process.hold(tmp_path, "race"):
        pass


def test_a_killed_process_releases_its_lock(tmp_path: Path, started: list[TrainingProcess]) -> None:
    found = process.detach(program(tmp_path), tmp_path, "race")
    os.kill(found.pid, signal.SIGKILL)
    reap(found)
    assert (tmp_path / process.LOCK).read_text().strip()
    assert process.running(tmp_path) is None
    with process.hold(tmp_path, "race"):
        pass


@pytest.mark.parametrize(("code", "kind"), [(2, InvalidArgument), (1, FailedPrecondition), (-9, FailedPrecondition)])
def test_a_process_that_does_not_start_is_reported_with_its_last_log_line(
    tmp_path: Path, code: int, kind: type
) -> None:
    end = f"sys.exit({code})" if code >= 0 else "os.kill(os.getpid(), 9)"
    script = f"import os, sys; print('error: the disk is full', file=sys.stderr, flush=True); {end}"
    (tmp_path / process.LOG).write_text("error: of another day\n")
    with pytest.raises(kind, match=r"^the disk is full \(log: .*continuous.log\)$"):
        process.detach([sys.executable, "-c", script], tmp_path, "race")


@pytest.mark.long
def test_a_process_that_is_never_ready_is_killed(tmp_path: Path) -> None:
    script = f"from pathlib import Path; Path({str(tmp_path)!r}, 'pid').write_text(str(__import__('os').getpid()));"
    with pytest.raises(DeadlineExceeded, match="is not ready"):
        process.detach(
            [sys.executable, "-c", f"{script} __import__('signal').pause()"], tmp_path, "race", deadline_seconds=0.5
        )
    pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert not pid or not Path(f"/proc/{pid}").exists()


def test_a_process_with_a_reused_pid_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "__import__('signal').pause()"]) as other:
        other_process = replace(TrainingProcess.own(ready=True), pid=other.pid)
        (tmp_path / process.LOCK).write_text(json.dumps(asdict(other_process)))
        assert process.running(tmp_path) is None
        assert process.stop(other_process, deadline_seconds=5) == ""
        assert other.poll() is None
        other.kill()


def test_the_same_pid_after_a_reboot_is_another_process(tmp_path: Path) -> None:
    own = TrainingProcess.own()
    assert own.lives
    assert not replace(own, boot_id="another").lives


@pytest.mark.long
@pytest.mark.parametrize(
    ("then", "how"),
    [
        (f"{WAITS}\nsignal.sigwait([signal.SIGTERM])", "did not wait for its pods"),
        ("signal.sigtimedwait([], 60)", "was killed"),
    ],
)
def test_a_process_that_does_not_stop_in_time_is_signalled_again_and_finally_killed(
    tmp_path: Path, started: list[TrainingProcess], monkeypatch: pytest.MonkeyPatch, then: str, how: str
) -> None:
    monkeypatch.setattr(process, "ORDER_SECONDS", 1.0)
    found = process.detach(program(tmp_path, then), tmp_path, "race")
    started.append(found)
    assert how in process.stop(found, deadline_seconds=0.2)
    reap(found)


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', "[]", "null"])
def test_a_damaged_record_names_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / process.LOCK).write_text(text)
    assert process.running(tmp_path) is None


def test_a_long_log_is_rotated_and_a_short_or_missing_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 10)
    process.rotate_log(tmp_path)
    with (tmp_path / process.LOG).open("ab", buffering=0) as log:
        log.write(b"short\n")
        process.rotate_log(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [process.LOG]
        log.write(b"no longer short\n")
        process.rotate_log(tmp_path)
        log.write(b"new\n")
    assert (tmp_path / f"{process.LOG}.1").read_text() == "short\nno longer short\n"
    assert (tmp_path / process.LOG).read_text() == "new\n"
