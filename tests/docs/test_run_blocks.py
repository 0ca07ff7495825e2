"""Runs the blocks of the documents that are marked `run`: `make test-docs`.

The blocks of one page run one after another in a separate folder, which has the `examples/` of the repository.
Blocks marked `file` are written there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import REPOSITORY, Block, all_blocks

pytestmark = pytest.mark.docs

DEADLINE_SECONDS = 120
BLOCKS = [block for block in all_blocks() if block.action in ("run", "file")]
PAGES = sorted({block.path for block in BLOCKS})


def run(block: Block, folder: Path) -> None:
    interpreter = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [*interpreter, block.text],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{block} exits with {done.returncode}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_another(page: str, tmp_path: Path):
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    for block in BLOCKS:
        if block.path == page and block.action == "file":
            (tmp_path / block.argument).write_text(block.text)
        elif block.path == page:
            run(block, tmp_path)
