"""Rotation of the audit log, to which several processes may append."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from podrace.access import audit_file
from podrace.access.audit_file import AuditFile
from podrace.access.service_access import AccessConfig
from podrace.errors import InvalidArgument


def record(number: int) -> bytes:
    return json.dumps({"number": number}).encode().ljust(49) + b"\n"


def numbers(folder: Path, kept: int) -> list[int]:
    paths = [folder / f"audit.log.{number}" for number in range(kept, 0, -1)] + [folder / "audit.log"]
    return [json.loads(line)["number"] for path in paths if path.exists() for line in path.read_text().splitlines()]


def test_two_processes_that_append_lose_no_record_when_one_of_them_rotates(tmp_path: Path) -> None:
    first, second = (AuditFile(tmp_path / "audit.log", most_bytes=200, kept_files=9) for _ in range(2))
    for number in range(30):
        (first if number % 3 else second).append(record(number))
    assert numbers(tmp_path, 9) == list(range(30))
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_no_more_files_are_kept_than_configured(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", most_bytes=100, kept_files=2)
    for number in range(20):
        file.append(record(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert numbers(tmp_path, 2) == list(range(14, 20))


def test_a_record_follows_the_file_when_another_program_renames_it(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log")
    file.append(record(0))
    (tmp_path / "audit.log").rename(tmp_path / "audit.log.1")
    file.append(record(1))
    assert (tmp_path / "audit.log").read_bytes() == record(1)


def test_a_file_that_cannot_be_rotated_grows_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, kept_files: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(audit_file, "shift", fail)
    file = AuditFile(tmp_path / "audit.log", most_bytes=100, kept_files=2)
    with capture_logs() as lines:
        for number in range(9):
            file.append(record(number))
    assert numbers(tmp_path, 2) == list(range(9))
    assert [line["event"] for line in lines] == ["the audit log cannot be rotated; it grows until the service restarts"]


def test_a_link_such_as_dev_stderr_is_written_and_never_renamed(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "target")
    file = AuditFile(tmp_path / "audit.log", most_bytes=100, kept_files=2)
    for number in range(9):
        file.append(record(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.log", "target"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("audit_log_bytes", 65_535), ("audit_log_bytes", -1), ("audit_log_files", 0), ("audit_log_files", 1001)],
)
def test_a_limit_out_of_range_is_refused_with_its_key(key: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"access.{key} = {value}: expected"):
        AccessConfig(**{key: value})  # type: ignore[arg-type]
    AccessConfig(audit_log_bytes=0)
