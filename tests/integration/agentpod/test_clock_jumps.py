"""A pod whose wall clock jumps by hours trains its agent as if it did not."""

import itertools
import sys
import time
from typing import Any

import pytest

from agentpod.learner.publisher import Publisher
from agentpod.process.wiring import run_leader
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

HOURS = 6 * 3600.0
PACKAGES = ("agentpod.", "podrace.", "simulators.")


class JumpingTime:
    """The module `time` with a wall clock that jumps at every reading; other clocks are right."""

    def __init__(self) -> None:
        self.readings = itertools.count()

    def time(self) -> float:
        return time.time() + HOURS * (-1) ** next(self.readings)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> JumpingTime:
    """Gives the clock to all modules of a pod. gRPC keeps its own, which it compares with that of its C library."""
    clock = JumpingTime()
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", clock)
    defaults = Publisher.__init__.__defaults__ or ()
    replaced = tuple(clock.time if value is time.time else value for value in defaults)
    monkeypatch.setattr(Publisher.__init__, "__defaults__", replaced)
    return clock


async def test_an_agent_is_trained_scored_and_published_while_the_wall_clock_jumps(
    mesh, make_spec, make_assignment, jumping: JumpingTime
):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(steps=8192)))
    config = mesh.pod_config("fused")
    config.folder.mkdir(exist_ok=True, mode=0o700)
    assert await run_leader(config) == 0
    (completed,) = mesh.orchestrator.completed
    assert completed.outcome == pb.OUTCOME_FINISHED
    assert completed.progress.environment_steps >= 8192
    assert mesh.leaderboard.manifests
    assert next(jumping.readings) > 0, "the clock was read"
