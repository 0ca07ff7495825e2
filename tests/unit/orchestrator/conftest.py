from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import AROUND, NAMESPACE, FakeCluster, Hands

from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.state.database import StateDatabase


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
async def state(tmp_path: Path, clock: HandClock) -> AsyncIterator[StateDatabase]:
    opened = StateDatabase.open(tmp_path / "orchestrator.sqlite", clock)
    yield opened
    opened.close()


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def make(cluster: FakeCluster, hands: Hands) -> Callable[..., KubernetesLauncher]:
    """Makes launchers `kubernetes`, with options, that talk to the same cluster of memory."""

    def made(**changes: Any) -> KubernetesLauncher:
        return KubernetesLauncher(
            AROUND, KubernetesOptions(**changes), find=lambda namespace: (cluster, NAMESPACE), monotonic=hands
        )

    return made


@pytest.fixture
def launcher(make: Callable[..., KubernetesLauncher]) -> KubernetesLauncher:
    return make()
