"""Fixtures for programs in a second language: gRPC for Node.js, fetched once for all tests."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

NodeProgram = Callable[[Path], Path]
INSTALL_SECONDS = 120


@pytest.fixture(scope="session")
def node_program() -> Iterator[NodeProgram]:
    """Copies a folder with a program and its package.json to where its packages are; skips where there is no npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    fetched: dict[str, Path] = {}

    with ExitStack() as folders:

        def new_folder() -> Path:
            return Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="podrace-node-")))

        def copied(source: Path) -> Path:
            folder = new_folder()
            for file in source.iterdir():
                if file.is_file():
                    shutil.copy(file, folder)
            wanted = (folder / "package.json").read_text().partition('"dependencies"')[2]
            if wanted in fetched:
                (folder / "node_modules").symlink_to(fetched[wanted] / "node_modules")
                return folder
            install = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(
                install, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
            if done.returncode:
                pytest.skip(f"gRPC for Node.js cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
            fetched[wanted] = folder
            return folder

        yield copied
