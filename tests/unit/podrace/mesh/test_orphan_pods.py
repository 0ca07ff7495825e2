import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podrace.mesh import orphan_pods
from podrace.processes.identity import Process

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def write_pod(folder: Path, pod_id: str, **changes: Any) -> None:
    (folder / pod_id).mkdir(parents=True)
    (folder / pod_id / "pod.json").write_text(json.dumps({"pod_id": pod_id, "boot_id": BOOT_ID} | changes))


def start_ticks(pid: int) -> int:
    process = Process.find(pid)
    assert process
    return process.start_ticks


def role(pid: int, start_ticks: int) -> dict[str, Any]:
    return {"learner": {"pid": pid, "start_ticks": start_ticks}}


def test_a_role_is_alive_until_its_process_exits(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_pod(tmp_path, "t-p1", roles=role(child.pid, start_ticks(child.pid)))
    assert [living.pid for living in orphan_pods.living_roles(tmp_path)] == [child.pid]
    child.kill()
    # The process is a zombie until it is waited for.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert orphan_pods.living_roles(tmp_path) == []


@pytest.mark.parametrize("changes", [{"boot_id": "another boot"}, {"roles": {}}, {"roles": None}])
def test_a_process_that_is_not_known_to_be_a_role_is_not_killed(
    tmp_path: Path, child: subprocess.Popen[bytes], changes: dict[str, Any]
) -> None:
    write_pod(tmp_path, "t-p1", **({"roles": role(child.pid, start_ticks(child.pid))} | changes))
    orphan_pods.remove(tmp_path)
    assert child.poll() is None


def test_a_process_with_a_reused_pid_is_not_killed(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_pod(tmp_path, "t-p1", roles=role(child.pid, start_ticks(child.pid) - 1))
    orphan_pods.remove(tmp_path)
    assert child.poll() is None


def test_removing_kills_roles_and_deletes_their_shared_memory(
    tmp_path: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(orphan_pods, "SHARED_MEMORY", shared)
    for name in ("podrace-t-p1-rollout", "podrace-t-p10-rollout", "of-another-program"):
        (shared / name).touch()
    folder = tmp_path / "pods"
    write_pod(folder, "t-p1", roles=role(child.pid, start_ticks(child.pid)))
    orphan_pods.remove(folder)
    assert child.wait(10) == -9
    assert sorted(path.name for path in shared.iterdir()) == ["of-another-program", "podrace-t-p10-rollout"]
    assert list(folder.iterdir()) == []


def test_a_truncated_pod_file_does_not_prevent_removal(tmp_path: Path) -> None:
    write_pod(tmp_path, "t-p1", roles={})
    (tmp_path / "t-p1" / "pod.json").write_text('{"pod_id": ')
    orphan_pods.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []
