from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.state import State


@dataclass
class HandClock:
    """A clock that a test turns."""

    now: float = 1000.0

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def state(tmp_path: Path, clock: HandClock) -> AsyncIterator[State]:
    opened = State.open(tmp_path / "orchestrator.sqlite", clock)
    yield opened
    opened.close()
