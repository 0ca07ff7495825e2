"""A run counts candidates that vanish between two faults, and does not count faults that did not happen."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import chaos_target
import pytest
import structlog
from chaos import ChaosOptions, chaos
from chaos_faults import Fault
from chaos_target import NotInjected, ask_environment, slow, stop
from embedded_target import LONGEST_BACKUP_AGE_SECONDS, EmbeddedTarget
from fake_target import FakeTarget
from homes import Home
from sleepy_environment import taken

from podrace.backup.copies import Backups
from podrace.checkpoint_store.folder import FolderStore
from podrace.telemetry import TelemetryConfig, configure_logging

OPTIONS = ChaosOptions(seconds=0.4, period_seconds=0.1, pods=1, rate_seconds=0.1)


def exited() -> int:
    """Returns the pid of a process that has exited."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def target(tmp_path: Path) -> EmbeddedTarget:
    """A mesh that was not started, and cannot have a small disk."""
    (tmp_path / "temporary").mkdir()
    return EmbeddedTarget(tmp_path, tmp_path / "temporary", None, learners=1)


# --- candidates --------------------------------------------------------------------------------------------------


def test_a_candidate_that_is_accepted_and_lost_between_two_faults_is_found(tmp_path: Path) -> None:
    def fault(target: FakeTarget, fault: Fault) -> None:
        candidate = f"at {fault.at_seconds}"
        target.accept(candidate)
        target.candidates.discard(candidate)

    with FakeTarget(tmp_path, fault) as target:
        found = chaos(target, OPTIONS, "")
    assert (found["candidates"], found["must_be_zero"]["lost_candidates"]) == (5, 4)


def test_a_candidate_that_only_its_pod_knows_is_lost(tmp_path: Path) -> None:
    def fault(target: FakeTarget, fault: Fault) -> None:
        target.recorded |= {"first": 1.0, "recorded": 2.0}

    with FakeTarget(tmp_path, fault) as target:
        found = chaos(target, OPTIONS, "")
    assert (found["candidates"], found["must_be_zero"]["lost_candidates"]) == (2, 1)


def test_candidates_that_were_accepted_after_the_newest_backup_are_counted_separately(tmp_path: Path) -> None:
    def fault(target: FakeTarget, fault: Fault) -> None:
        target.recorded |= {"unprotected": 2.0, "backed up": 0.5}
        target.unprotected = [(1.0, 3.0)]

    with FakeTarget(tmp_path, fault) as target:
        found = chaos(target, OPTIONS, "")
    assert (found["candidates_after_backup"], found["must_be_zero"]["lost_candidates"]) == (1, 1)


def test_the_logs_of_pods_name_the_accepted_candidates(
    target: EmbeddedTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, begin = target.home.folders.logs, time.time()
    logs.mkdir(parents=True)
    configure_logging(TelemetryConfig())
    for name, digest in (("t-p0.log", "0" * 64), ("t-p1.log.1", "1" * 64)):
        structlog.get_logger().info("submitted", candidate_id=digest, score=20.0, rank=1, verdict="the board has room")
        structlog.get_logger().info("refused", candidate_id="2" * 64)
        (logs / name).write_text(capsys.readouterr().err)
    found = target.acknowledged()
    assert found.keys() == {"0" * 64, "1" * 64}
    assert all(begin - 1 < seconds < time.time() + 1 for seconds in found.values())


def test_candidates_are_unprotected_since_the_newest_backup_of_the_leaderboard(
    target: EmbeddedTarget, tmp_path: Path
) -> None:
    backups = Backups(FolderStore(target.home.path / "store"), "main", "leaderboard")
    backups.claim(1)
    (tmp_path / "copy").write_bytes(b"database")
    made = time.time() - 5.0
    backups.write(tmp_path / "copy", 1, "id", made, hours=0)
    begin, end = target.since_backup("leaderboard")
    assert begin == made < end <= time.time()


def test_a_backup_that_is_too_old_excuses_no_loss(target: EmbeddedTarget) -> None:
    FolderStore(target.home.path / "store")
    begin, end = target.since_backup("leaderboard")
    assert end - begin == pytest.approx(LONGEST_BACKUP_AGE_SECONDS)


# --- faults that do not happen -----------------------------------------------------------------------------------


def test_faults_that_did_not_happen_are_in_the_results_and_not_in_the_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(target: FakeTarget, fault: Fault) -> None:
        if fault.kind == "kill":
            raise NotInjected("no process")

    with FakeTarget(tmp_path, fault) as target:
        found = chaos(target, OPTIONS, "")
    assert (found["faults"], found["not_injected"]) == (2, {"kill learner": 2})
    assert found["pod_seconds_lost"].keys() == {"stop learner"}
    assert "not injected: kill learner: no process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "named", "reason"),
    [("full", "store", "may not mount a small disk"), ("kill", "fork server", "no fork server runs")],
)
def test_a_fault_that_is_impossible_is_reported(target: EmbeddedTarget, kind: str, named: str, reason: str) -> None:
    assert (kind, named) in target.classes
    with pytest.raises(NotInjected, match=reason):
        target.inject(Fault(0.0, kind, named, 1.0))


def test_a_service_is_not_killed_again_before_it_serves(
    target: EmbeddedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Home, "service", lambda home, name: 7)
    assert target.pids("leaderboard") == []
    path = target.home.folders.leaderboard_socket
    path.parent.mkdir(parents=True)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            assert target.pids("leaderboard") == [7]
        assert target.pids("leaderboard") == []
    finally:
        shutil.rmtree(path.parent)


def test_a_fault_that_no_environment_takes_does_not_happen_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_target, "TAKEN_SECONDS", 0.1)
    with pytest.raises(NotInjected, match="no environment stepped"):
        ask_environment(tmp_path, "hold", 0.0)
    assert not (tmp_path / "hold").exists()


def test_a_fault_that_an_environment_takes_has_happened(tmp_path: Path) -> None:
    def take() -> None:
        while not taken(tmp_path / "hold"):
            pass

    environment = threading.Thread(target=take)
    environment.start()
    ask_environment(tmp_path, "hold", 0.0)
    environment.join()


@pytest.mark.parametrize("fault", [stop, slow])
def test_processes_that_have_exited_can_not_be_stopped(fault: object) -> None:
    assert callable(fault)
    with pytest.raises(NotInjected, match="SIGSTOP"):
        fault([exited()], 0.0)


def test_a_process_that_is_replaced_while_it_is_slow_was_slow() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    killing = threading.Timer(0.3, lambda: (process.kill(), process.wait()))
    killing.start()
    slow([process.pid], 0.8)
    killing.join()
    assert process.returncode == -signal.SIGKILL
