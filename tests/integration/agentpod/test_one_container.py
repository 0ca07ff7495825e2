"""All roles of a pod as processes of one container, which ends with its leader."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentpod.config import PodConfig
from agentpod.process.one_container import with_own_port
from podrace.telemetry import TelemetryConfig

TIMEOUT_SECONDS = 60.0
SCRIPT = """
import os, signal, sys
from pathlib import Path
from agentpod.config import PodConfig
from agentpod.process import one_container

FOLDER = Path(sys.argv[1])

def run_role(config, role):
    if role == "learner":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    written = FOLDER / f"{role}.new"
    written.write_text(str(os.getpid()))
    written.rename(FOLDER / f"{role}.pid")
    if role != "learner":
        signal.pause()
    signal.sigwait([signal.SIGTERM])
    return 7

pod = PodConfig("p", "unix:o", "unix:l", "folder:///s", FOLDER, layout="separate", plane_folder=FOLDER)
sys.exit(one_container.main(pod, run_role))
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)])
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


def pid_of(folder: Path, role: str, accept: Callable[[int], bool] = lambda pid: True) -> int:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        path = folder / f"{role}.pid"
        if path.exists() and accept(pid := int(path.read_text())):
            return pid
        assert time.monotonic() < deadline, f"{role} does not run"
        time.sleep(0.01)


def test_a_lost_role_is_restarted_and_the_container_ends_with_its_leader(
    pod: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    roles = {role: pid_of(tmp_path, role) for role in ("learner", "worker-0", "evaluator")}
    os.kill(roles["worker-0"], signal.SIGKILL)
    roles["worker-0"] = pid_of(tmp_path, "worker-0", lambda pid: pid != roles["worker-0"])
    pod.terminate()
    assert pod.wait(TIMEOUT_SECONDS) == 7
    assert not any(Path(f"/proc/{pid}").exists() for pid in roles.values())


def test_a_killed_leader_ends_the_container_as_a_shell_would_report_it(
    pod: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    leader, _, _ = [pid_of(tmp_path, role) for role in ("learner", "worker-0", "evaluator")]
    os.kill(leader, signal.SIGKILL)
    assert pod.wait(TIMEOUT_SECONDS) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("listen", "expected"), [("0.0.0.0:9090", "0.0.0.0:9092"), ("127.0.0.1:0", "127.0.0.1:0"), ("", "")]
)
def test_every_role_serves_metrics_at_a_separate_port(listen: str, expected: str) -> None:
    pod = PodConfig("p", "unix:o", "unix:l", "folder:///s", Path("/tmp"), layout="separate")
    config = replace(pod, telemetry=TelemetryConfig(metrics_listen=listen))
    assert with_own_port(config, "evaluator").telemetry.metrics_listen == expected
