"""How many environment steps an agent can have trained, which a manifest must not exceed."""

from typing import Any

import pytest

from leaderboard.checkpoints.manifest_check import most_steps
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification.resolve import parse, resolve

ROLLOUT = 8 * 100


@pytest.mark.parametrize(
    ("pod", "rollouts"),
    [
        ({}, 2),
        ({"learners": 2, "cores": 2}, 2 * 5),
        ({"gpus": 1, "cores": 4, "maximum_cores": 8}, 5),
        ({"maximum_cores": 4}, 2),
    ],
)
def test_an_agent_may_exceed_a_small_budget_by_what_its_pod_trains_until_it_can_end(
    pod: dict[str, Any], rollouts: int
) -> None:
    values = {
        "environment": {"id": "CartPole-v1", "count": 8},
        "algorithms": {"ppo": {"hyperparameters": {"horizon": 100}}},
        "objective": {"environment_steps": 100_000},
        "assignment": {"environment_steps": 500},
        "fusion": {"every_updates": 5},
        "pod": pod,
    }
    spec = resolve(parse(values, source="test"))
    agent = Agent()
    agent.hyperparameters.update({"horizon": 100})
    assert most_steps(agent, spec) == 500 + rollouts * ROLLOUT
