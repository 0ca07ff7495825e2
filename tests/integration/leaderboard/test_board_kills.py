import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("board_kills.py")


def toll_of(*options: str, timeout_seconds: float) -> dict[str, Any]:
    """Kills leaderboards from a separate process, because that process forks; no kill may lose or damage data."""
    command = [sys.executable, str(PROGRAM), *options]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds)
    if "sqlite3_vfs_find" in answer.stderr:
        pytest.skip("this Python's SQLite does not show its functions, so that its writes cannot be counted")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    toll: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert [toll[harm] for harm in ("unopened", "lost", "torn", "diverged")] == [0, 0, 0, 0]
    return toll


def test_a_leaderboard_killed_at_a_write_has_done_all_it_answered_and_nothing_by_half() -> None:
    toll = toll_of("--every", "17", timeout_seconds=120)
    assert toll["kills"] >= 8
    assert toll["unacknowledged"] >= 1, "no kill fell between a commit and its answer"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_so_it_is_at_every_write_before_it_at_its_half_and_after_it() -> None:
    toll = toll_of(timeout_seconds=900)
    assert toll["kills"] > 2.9 * toll["writes"], "more than a few lives made fewer writes than the first"
    assert toll["unacknowledged"] >= 10
