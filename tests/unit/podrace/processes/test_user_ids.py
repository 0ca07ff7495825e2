"""Processes with separate user ids. What needs root is tested by tests/security/test_user_code_processes.py."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from podrace.processes import user_ids

STATUS = "Name:\tx\nCapEff:\t{:016x}\n"
ALL = sum(1 << capability for capability in user_ids.NEEDED)


def proc(folder: Path, capabilities: int = ALL, uid_map: str = "0 0 4294967295\n") -> Path:
    (folder / "self").mkdir()
    (folder / "self/status").write_text(STATUS.format(capabilities))
    (folder / "self/uid_map").write_text(uid_map)
    return folder


@pytest.mark.parametrize(
    ("uid", "capabilities", "uid_map", "expected"),
    [
        (0, ALL, "0 0 4294967295\n", True),
        (1000, ALL, "0 0 4294967295\n", False),
        (0, ALL & ~(1 << user_ids.SETUID), "0 0 4294967295\n", False),
        (0, ALL, "0 1000 1\n1 100000 65536\n", True),
        (0, ALL, "0 1000 1\n", False),
    ],
)
def test_only_root_with_its_capabilities_and_known_user_ids_may_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, capabilities: int, uid_map: str, expected: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert user_ids.may_change((61_184, 65_000), proc(tmp_path, capabilities, uid_map)) is expected


def test_the_first_free_user_id_is_chosen() -> None:
    assert user_ids.first_free(range(5, 8), {5, 7}) == 6
    assert user_ids.first_free(range(5, 7), {5, 6}) == 0


def test_the_user_of_this_process_is_in_use() -> None:
    assert os.geteuid() in user_ids.in_use()


def in_a_child(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_limits_are_permanent_and_never_raised() -> None:
    printed = in_a_child(
        "import resource\n"
        "from podrace.processes import user_ids\n"
        "user_ids.limit(1 << 30, processes=True)\n"
        "print(*resource.getrlimit(resource.RLIMIT_CORE), *resource.getrlimit(resource.RLIMIT_NPROC),"
        " *resource.getrlimit(resource.RLIMIT_DATA))\n"
    )
    core, hard_core, processes, hard_processes, data, hard_data = map(int, printed.split())
    assert (core, hard_core) == (0, 0)
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    assert processes == hard_processes
    assert processes == user_ids.MOST_PROCESSES or processes == own
    assert data == hard_data > 1 << 30


@pytest.mark.parametrize("limiting", ["processes.user_ids.limit", "plugins.loader.confine"])
def test_a_limited_process_is_killed_first_when_memory_runs_out(limiting: str) -> None:
    module = f"podrace.{limiting.rpartition('.')[0]}"
    read = "print(open('/proc/self/oom_score_adj').read())"
    assert in_a_child(f"import {module}\npodrace.{limiting}()\n{read}") == str(user_ids.HIGHEST_OOM_SCORE)


def test_a_hidden_process_is_not_read_by_another_process_of_its_user() -> None:
    """Of root nothing can be hidden, so the child tries as another user."""
    if not user_ids.may_change((61_183,)):
        pytest.skip("only root may run processes as other users")
    printed = in_a_child(
        "import os\n"
        "from pathlib import Path\n"
        "from podrace.processes import user_ids\n"
        "os.setresgid(61183, 61183, 61183)\n"
        "os.setresuid(61183, 61183, 61183)\n"
        # The kernel hides a process that has changed its user; one that was started as that user is not hidden.
        "import ctypes\n"
        "ctypes.CDLL(None).prctl(user_ids.PR_SET_DUMPABLE, 1, 0, 0, 0)\n"
        "def look():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            Path(f'/proc/{os.getppid()}/environ').read_bytes()\n"
        "        except OSError:\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "before = look()\n"
        "user_ids.hide_memory()\n"
        "print(before, look())\n"
    )
    assert printed == "0 1"
