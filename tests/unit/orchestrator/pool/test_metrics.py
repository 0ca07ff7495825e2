"""Tests the metrics that follow from decisions."""

import prometheus_client

from orchestrator.decisions.fair_share import Demand
from orchestrator.decisions.pool_size import Action, PodActivity, PodView, RetirePod, StartPod
from orchestrator.decisions.resources import Resources
from orchestrator.pool.metrics import measure_wanted, wanted

POD = Resources(1.0, 1, 0)


def demand(name: str, minimum_pods: int = 0) -> Demand:
    return Demand(name, POD, minimum_pods, None)


def view(pod_id: str, tournament_id: str, drained_since: float | None = None) -> PodView:
    return PodView(pod_id, tournament_id, POD, 0.0, drained_since, False, lambda now: PodActivity(busy=True))


def test_wanted_pods_are_the_current_ones_plus_started_minus_retired() -> None:
    views = [view("a0", "a"), view("a1", "a"), view("b0", "b"), view("b1", "b", drained_since=1.0)]
    actions: list[Action] = [StartPod("a", "capacity"), RetirePod("b0", "too many")]
    assert wanted([demand("a"), demand("b")], views, actions) == {"a": 3, "b": 0}


def test_a_minimum_without_capacity_is_still_wanted() -> None:
    assert wanted([demand("a", 2)], [], []) == {"a": 2}


def test_pods_of_a_tournament_without_work_are_not_wanted() -> None:
    assert wanted([], [view("a0", "a")], [RetirePod("a0", "no work")]) == {"a": 0}


def value(tournament_id: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(
        "podrace_orchestrator_pods_wanted", {"tournament_id": tournament_id}
    )


def test_only_metrics_of_finished_tournaments_are_removed() -> None:
    measure_wanted({"a": 1, "b": 2})
    measure_wanted({"b": 3})
    assert (value("a"), value("b")) == (None, 3.0)
    measure_wanted({})
    assert value("b") is None
