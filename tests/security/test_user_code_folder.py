"""User code that runs as another user does not reach files by the working folder of the service that started it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from podrace.processes import user_ids

UID = 61_399
PROGRAM = """
import os, sys
from pathlib import Path
from podrace.processes import user_ids
user_ids.become(int(sys.argv[1]), Path("/nonexistent"))
print(os.getcwd())
try:
    print(Path("notes").read_text())
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.cold
@pytest.mark.skipif(not user_ids.may_change([UID]), reason="only root starts processes of other users")
@pytest.mark.parametrize("closed", [True, False])
def test_a_working_folder_below_a_closed_one_is_left(closed: bool) -> None:
    """Fails on the earlier behaviour: a relative path needs no right to enter the folders above."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        outer = Path(name)
        outer.chmod(0o700 if closed else 0o755)
        (folder := outer / "project").mkdir(mode=0o755)
        (folder / "notes").write_text("secret")
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", PROGRAM, str(UID)]
        printed = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout
        assert printed.split() == (["/", "FileNotFoundError"] if closed else [str(folder), "secret"])
