"""Faults one after the other lose no candidate, fail no agent, damage no checkpoint, and leave nothing behind."""

import pytest
from chaos import chaos
from chaos_faults import KINDS, Fault, Interval, costs, goodput, plan


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_faults_of_two_minutes_lose_nothing():
    found = chaos(seed=1, seconds=120.0, period_seconds=15.0, kinds=list(KINDS))
    assert set(found["must_be_zero"].values()) == {0}, found
    assert found["faults"] == 8
    assert found["goodput"] > 0.3, found


def test_a_plan_depends_on_its_seed_alone_and_meets_every_class_of_faults():
    first = plan(1, 1800.0, 29.0, list(KINDS))
    assert first == plan(1, 1800.0, 29.0, list(KINDS)) != plan(2, 1800.0, 29.0, list(KINDS))
    assert len(first) == 62
    classes = {f"{kind} {target}" for kind, each in KINDS.items() for target in each.targets}
    assert {fault.name for fault in first[: len(classes)]} == classes
    assert {fault.kind for fault in plan(1, 600.0, 29.0, ["kill"])} == {"kill"}


def test_goodput_is_the_share_of_steps_that_were_not_lost():
    kill, stop = Fault(0.0, "kill", "learner", 0.0), Fault(10.0, "stop", "learner", 5.0)
    intervals = [Interval(kill, 10.0, 800), Interval(stop, 10.0, 600)]
    assert goodput(intervals, 100.0) == 0.7
    assert {name: cost.seconds for name, cost in costs(intervals, 100.0, pods=2).items()} == {
        "kill learner": 4.0,
        "stop learner": 8.0,
    }
