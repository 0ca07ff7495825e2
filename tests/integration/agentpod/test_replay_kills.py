"""A process that is killed while it stores a replay memory leaves a whole one."""

import json
import subprocess
import sys
from pathlib import Path

KILLS = 10


def test_a_process_killed_while_it_stores_its_replay_memory_leaves_a_whole_one() -> None:
    # In a separate process, because it forks.
    program = Path(__file__).with_name("replay_kills.py")
    command = [sys.executable, str(program), "--kills", str(KILLS), "--seed", "3"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads(answer.stdout.splitlines()[-1])
    assert (report["kills"], report["incomplete"], report["wrong"], report["regressed"]) == (KILLS, 0, 0, 0)
    assert report["publications"] > 0
