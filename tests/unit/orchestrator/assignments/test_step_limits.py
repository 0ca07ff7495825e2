from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.assignments.step_limits import StepLimits
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tournament.v1.tournament_pb2 import AssignmentSpec, ObjectiveSpec, TournamentSpec


def agent(number: int) -> Any:
    """An agent whose pod has a lease, and that the leaderboard has not generated yet."""
    return SimpleNamespace(agent_id=f"a{number}", lease_epoch=1, pod_id=f"p{number}", environment_steps=0, agent=None)


@pytest.mark.parametrize(("assignment", "pods"), [(333_000, 4), (200_000, 8), (1_000_000, 4)])
async def test_pods_that_have_their_leases_before_any_limit_get_equal_parts(assignment: int, pods: int) -> None:
    objective, length = ObjectiveSpec(environment_steps=1_000_000), AssignmentSpec(environment_steps=assignment)
    tournament: Any = SimpleNamespace(
        tournament_id="t", spec=TournamentSpec(objective=objective, assignment=length), round_size=0
    )
    agents = {f"a{number}": agent(number) for number in range(pods)}
    held = {name: SimpleNamespace(progress=SimpleNamespace(environment_steps=0)) for name in agents}
    views = {f"p{number}": SimpleNamespace(tournament_id="t", drain_reason="") for number in range(pods)}
    runtime: Any = SimpleNamespace(
        step_limits={},
        leases=SimpleNamespace(held=held),
        counters=SimpleNamespace(environment_steps=lambda name: 0),
        cache=SimpleNamespace(unfinished_agents=lambda name: agents, pods=views),
    )
    limits, found = StepLimits(SimpleNamespace(), runtime), []
    for one in agents.values():
        found.append(await limits.of(tournament, one))
        limits.record(one, found[-1] or 0)
    assert found == [1_000_000 // pods] * pods
    one.agent = Agent(assignment_environment_steps=10)
    limits.forget(agents["a0"])
    assert await limits.of(tournament, agents["a0"]) == 1_000_000 // pods
