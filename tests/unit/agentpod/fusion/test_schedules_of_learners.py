"""Tests that a learner that joins others continues the learning rate schedule of the agent."""

from typing import Any

import pytest
from experience import Course, cases_of, new_algorithm
from thread_group import together

from agentpod.algorithms import Algorithm
from agentpod.fusion.averaging import StateAverager
from agentpod.fusion.rounds import MODES, FusionOptions
from podrace.tensor_transport.group import Group

SCHEDULE = {"learning_rate": 0.01, "final_learning_rate": 0.0, "learning_rate_steps": 1000}
SCHEDULED = [(name, kind) for name, kind in cases_of(("ppo", "a2c", "ippo", "mappo", "python:reinforce:Reinforce"))]


def join(group: Group, algorithm: Algorithm, mode: str) -> None:
    averager = StateAverager(algorithm.fusible(), FusionOptions(mode=mode))
    averager.group = group
    averager.broadcast_leader_state(joining=group.rank > 0)
    averager.apply(averager.prepare())
    algorithm.refresh()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "kind"), [case for case in SCHEDULED if case[1] == "discrete"])
def test_a_joining_learner_has_the_learning_rate_of_the_leader(name: str, kind: str, mode: str) -> None:
    leader, follower = (new_algorithm(name, kind, **SCHEDULE) for _ in range(2))
    course = Course(leader, kind)
    for _ in range(3):
        leader.update(course.next())
    together(join, [leader, follower], [mode, mode])
    experience = course.next()
    found: list[Any] = []
    for learner in (leader, follower):
        learner.update(experience)
        found.append(float(learner._optimizer.rate))  # type: ignore[attr-defined]
    assert found[0] < 0.0099
    assert found[0] == found[1]
