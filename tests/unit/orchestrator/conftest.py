from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import NAMESPACE, POD_ENVIRONMENT, FakeCluster, ManualMonotonic

from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.state.database import StateDatabase


@dataclass
class ManualClock:
    """A clock that a test sets."""

    now: float = 1000.0

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def state(tmp_path: Path, clock: ManualClock) -> AsyncIterator[StateDatabase]:
    opened = StateDatabase.open(tmp_path / "orchestrator.sqlite", clock)
    yield opened
    opened.close()


@pytest.fixture
def monotonic() -> ManualMonotonic:
    return ManualMonotonic()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def make(cluster: FakeCluster, monotonic: ManualMonotonic) -> Callable[..., KubernetesLauncher]:
    """Makes Kubernetes launchers with the given options that use the same fake cluster."""

    def made(**changes: Any) -> KubernetesLauncher:
        return KubernetesLauncher(
            POD_ENVIRONMENT,
            KubernetesOptions(**{"unprotected_collectives": True, **changes}),
            find=lambda namespace: (cluster, NAMESPACE),
            monotonic=monotonic,
        )

    return made


@pytest.fixture
def launcher(make: Callable[..., KubernetesLauncher]) -> KubernetesLauncher:
    return make()
