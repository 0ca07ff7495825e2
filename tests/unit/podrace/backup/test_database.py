"""Periodic backups of a database: no failure ends them, each is counted, and an overdue backup is made at once."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import prometheus_client
import pytest

from podrace.backup.config import BackupConfig
from podrace.backup.copies import Backups
from podrace.backup.database import BACKUP_DUE, BACKUP_TIME, BackedUpDatabase, first_wait
from podrace.checkpoint_store import open_store
from podrace.database import DatabaseLocation, Format
from podrace.errors import FailedPrecondition, Unavailable

FORMAT = Format("orchestrator", 7, 1, "CREATE TABLE numbers (number INTEGER)")
PERIOD_SECONDS = 0.001


def metric(name: str) -> float:
    value = prometheus_client.REGISTRY.get_sample_value(name)
    assert value is not None
    return value


def open_state(folder: Path, period_seconds: float) -> asyncio.Future[BackedUpDatabase]:
    config = BackupConfig(period_seconds=period_seconds)
    location = DatabaseLocation(folder / "state.sqlite")
    return asyncio.ensure_future(
        BackedUpDatabase.open(location, FORMAT, lambda: 1.0, config, f"folder://{folder / 'store'}")
    )


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[BackedUpDatabase]:
    state = await open_state(tmp_path, PERIOD_SECONDS)
    yield state
    state.database.close()


@pytest.mark.parametrize(
    "fault",
    [
        sqlite3.OperationalError("unable to open database file"),
        OSError(24, "Too many open files"),
        Unavailable("the store cannot be reached"),
        RuntimeError("a defect"),
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_backup_that_fails_for_any_reason_is_counted_and_the_next_one_is_made(
    opened: BackedUpDatabase, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_to, calls, repeated = opened.database.copy_to, [0], asyncio.Event()

    async def fail_once(path: Path) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise fault
        await copy_to(path)
        repeated.set()

    monkeypatch.setattr(opened.database, "copy_to", fail_once)
    failures = metric("podrace_backup_failures_total")
    running = asyncio.create_task(opened.run())
    async with asyncio.timeout(20):
        await repeated.wait()
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    assert metric("podrace_backup_failures_total") == failures + 1


async def test_a_refused_backup_ends_the_service_if_another_one_was_restored_since(
    opened: BackedUpDatabase, tmp_path: Path
) -> None:
    (replaced,) = map(asyncio.ensure_future, opened.ends())
    await opened.back_up()
    assert not replaced.done()
    backups = Backups(open_store(f"folder://{tmp_path / 'store'}"), "main", "orchestrator")
    backups.claim(backups.epoch() + 1)
    with pytest.raises(FailedPrecondition):
        await opened.back_up()
    assert await replaced == f"another service was restored from the backups of {tmp_path / 'state.sqlite'}"


async def test_a_copy_that_cannot_be_made_is_reported_in_one_line(opened: BackedUpDatabase, tmp_path: Path) -> None:
    (tmp_path / "state.sqlite.backup").mkdir()
    with pytest.raises(FailedPrecondition, match=r"its copy .* cannot be made: .*; look at the rights"):
        await opened.back_up()


async def test_the_time_at_which_a_backup_is_due_is_that_of_the_newest_one_and_the_period(tmp_path: Path) -> None:
    first = await open_state(tmp_path, 3600.0)
    made = await first.back_up()
    first.database.close()
    for gauge in (BACKUP_TIME, BACKUP_DUE):
        gauge.set(0)  # as in a new process
    second = await open_state(tmp_path, 3600.0)
    second.database.close()
    assert metric("podrace_backup_time_seconds") == pytest.approx(made.time)
    assert metric("podrace_backup_due_time_seconds") == pytest.approx(made.time + 3600)


@pytest.mark.parametrize(
    ("due", "seconds"),
    [(1_060.0, 60.0), (1_010.0, 10.0), (1_000.0, 0.0), (500.0, 0.0), (9_000.0, 60.0)],
    ids=["new", "restarted", "due", "overdue", "a clock that was ahead"],
)
def test_an_overdue_backup_is_made_at_once_and_no_backup_waits_longer_than_the_period(
    due: float, seconds: float
) -> None:
    assert first_wait(1_000.0, due, 60.0) == seconds
