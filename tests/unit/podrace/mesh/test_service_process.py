"""A service that does not start is reported with its last log line."""

from pathlib import Path

import pytest

from podrace.errors import FailedPrecondition
from podrace.mesh.service_process import ServiceCommand, ServiceProcess


@pytest.mark.parametrize("before", ["", "the log of a previous run\n" * 9])
@pytest.mark.parametrize("rotate", ["true", ": > {log}"])
async def test_the_last_line_is_found_although_the_log_was_rotated_meanwhile(
    tmp_path: Path, before: str, rotate: str
) -> None:
    log = tmp_path / "leaderboard.log"
    log.write_text(before)
    script = f"{rotate.format(log=log)}; echo 'error: the database is damaged' >&2; exit 2"
    command = ServiceCommand("leaderboard", ("/bin/sh", "-c", script), tmp_path / "l.sock", log)
    with pytest.raises(FailedPrecondition, match="the leaderboard does not start: the database is damaged"):
        await ServiceProcess(command, notify=print).start()
