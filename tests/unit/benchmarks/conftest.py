import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Last on the import path: in front it would hide packages of the repository behind benchmarks of their names."""
    sys.path.append(FOLDER)
    yield
    sys.path.remove(FOLDER)
