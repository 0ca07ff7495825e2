from collections.abc import Collection
from pathlib import Path

import pytest

from orchestrator.launchers.process.pinned_cpus import cpus_of_other_pods

FORK_SERVER = b"python\0-m\0agentpod\0forkserver\0"
ALL = {0, 1, 2, 3}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, command in ((10, FORK_SERVER), (11, FORK_SERVER), (12, FORK_SERVER), (13, b"sleep\0"), (14, b"")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
    (tmp_path / "15").mkdir()
    (tmp_path / "meminfo").touch()
    return tmp_path


def test_only_processes_of_pods_that_are_bound_to_some_processors_count(proc: Path) -> None:
    bound = {0: ALL, 10: {0}, 11: {1, 2, 7}, 12: ALL, 13: {3}, 14: {3}}
    assert cpus_of_other_pods((), proc=proc, affinity=bound.__getitem__) == {0, 1, 2}
    assert cpus_of_other_pods([11], proc=proc, affinity=bound.__getitem__) == {0}


def test_a_process_that_has_ended_is_ignored(proc: Path) -> None:
    def affinity(pid: int) -> Collection[int]:
        if pid == 10:
            raise ProcessLookupError
        return {0: ALL, 11: {2}}.get(pid, ALL)

    assert cpus_of_other_pods((), proc=proc, affinity=affinity) == {2}


def test_a_pod_that_may_run_on_all_processors_of_this_process_is_bound_to_none(proc: Path) -> None:
    assert not cpus_of_other_pods((), proc=proc, affinity=lambda _: {0, 1})
