"""A process records its port for the launcher, which reads nothing else from a folder of user code."""

import os
from pathlib import Path

import pytest

from podrace.processes.identity import Process
from podrace.processes.metrics_ports import port_file, record, recorded

SELF = Process(os.getpid(), 1)


def test_a_recorded_port_is_found(tmp_path: Path):
    record(tmp_path, "worker-0", "127.0.0.1:40123")
    assert recorded(tmp_path, "worker-0", SELF) == 40123
    assert recorded(tmp_path, "worker-1", SELF) == 0


def test_what_an_earlier_process_has_recorded_does_not_count(tmp_path: Path):
    record(tmp_path, "worker-0", "127.0.0.1:40123")
    assert recorded(tmp_path, "worker-0", Process(SELF.pid + 1, 1)) == 0


def test_a_process_without_metrics_leaves_no_record(tmp_path: Path):
    record(tmp_path, "worker-0", "127.0.0.1:40123")
    record(tmp_path, "worker-0", "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path):
    record(tmp_path / "missing", "worker-0", "127.0.0.1:40123")
    assert recorded(tmp_path / "missing", "worker-0", SELF) == 0


@pytest.mark.parametrize("text", ["", "x", "PID", "PID 70000", "PID -1", "1 " * 100])
def test_what_is_no_record_names_no_port(tmp_path: Path, text: str):
    port_file(tmp_path, "worker-0").write_text(text.replace("PID", str(SELF.pid)))
    assert recorded(tmp_path, "worker-0", SELF) == 0


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path):
    record(tmp_path, "learner", "127.0.0.1:40123")
    port_file(tmp_path, "worker-0").symlink_to(port_file(tmp_path, "learner"))
    os.mkfifo(port_file(tmp_path, "worker-1"))
    assert [recorded(tmp_path, role, SELF) for role in ("worker-0", "worker-1")] == [0, 0]
