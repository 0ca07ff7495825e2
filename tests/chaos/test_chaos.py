"""Faults one after the other lose no candidate, fail no agent, damage no checkpoint, and leave nothing behind."""

from pathlib import Path

import pytest
from chaos import ChaosOptions, chaos, opened
from chaos_faults import CLASSES, FUSED_CLASSES, SECONDS, Fault, plan
from chaos_measures import Happened, Interval, costs, goodput, held_share, restarts

LOST, RETURNED = "after the loss of a pod", "after a pod returned it"


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_faults_of_two_minutes_lose_nothing(tmp_path: Path) -> None:
    options = ChaosOptions(seconds=120.0, period_seconds=15.0)
    with opened("embedded", tmp_path, options) as (target, faults):
        found = chaos(target, options, faults)
    assert set(found["must_be_zero"].values()) == {0}, found
    assert found["faults"] == 8
    assert found["goodput"] > 0.3, found


def test_every_class_of_faults_has_a_duration() -> None:
    assert {kind for classes in (*CLASSES.values(), FUSED_CLASSES) for kind, _ in classes} == set(SECONDS)


@pytest.mark.parametrize("mesh", CLASSES)
def test_a_plan_depends_on_its_seed_alone_and_meets_every_class_of_faults(mesh: str) -> None:
    first = plan(1, 1800.0, 29.0, CLASSES[mesh])
    assert first == plan(1, 1800.0, 29.0, CLASSES[mesh]) != plan(2, 1800.0, 29.0, CLASSES[mesh])
    assert len(first) == 62
    classes = {f"{kind} {target}" for kind, target in CLASSES[mesh]}
    assert {fault.name for fault in first[: len(classes)]} == classes
    assert all(SECONDS[fault.kind][0] <= fault.seconds <= SECONDS[fault.kind][1] for fault in first)


def test_goodput_is_the_share_of_steps_that_were_not_lost() -> None:
    kill, stop = Fault(0.0, "kill", "learner", 0.0), Fault(10.0, "stop", "learner", 5.0)
    intervals = [Interval(kill, 10.0, 800), Interval(stop, 10.0, 600)]
    assert goodput(intervals, 100.0) == 0.7
    assert {name: cost.seconds for name, cost in costs(intervals, 100.0, pods=2).items()} == {
        "kill learner": 4.0,
        "stop learner": 8.0,
    }


def test_an_agent_is_held_from_its_assignment_to_the_end_of_the_assignment_or_of_its_pod() -> None:
    events = [
        Happened(0.0, "agent_assigned", "p0", "a0"),
        Happened(5.0, "agent_assigned", "p1", "a1"),
        Happened(8.0, "pod_died", "p0"),
        Happened(9.0, "agent_drained", "p1", "a1"),
        Happened(10.0, "agent_assigned", "p1", "a1"),
        Happened(12.0, "agent_assigned", "p2", "a0"),
    ]
    assert held_share(events, 0.0, 15.0, pods=2) == (8 + 4 + 5 + 3) / 30
    assert held_share(events, 8.0, 10.0, pods=2) == 1 / 4
    assert restarts(events) == {LOST: 1, RETURNED: 1}
    assert restarts(events, begin=11.0) == {LOST: 1, RETURNED: 0}
