import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Appends the folder to the import path: in front, benchmarks would hide packages of the same name."""
    sys.path.append(FOLDER)
    yield
    sys.path.remove(FOLDER)
