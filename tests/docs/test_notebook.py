"""The notebook of the documentation has the cells of its script, with outputs, and they run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import REPOSITORY

pytest.importorskip("nbclient")
SCRIPT = REPOSITORY / "docs/tools/notebook.py"


def run(*arguments: str, seconds: float) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_notebook_is_the_one_of_its_script():
    run("--check", seconds=60)


@pytest.mark.docs
@pytest.mark.timeout(600)
def test_the_cells_run_and_the_champion_balances_the_pole(tmp_path: Path):
    run("--output", str(tmp_path / "found.ipynb"), seconds=500)
    cells = json.loads((tmp_path / "found.ipynb").read_text())["cells"]
    (last,) = cells[-1]["outputs"]
    assert float("".join(last["data"]["text/plain"])) >= 400.0
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
