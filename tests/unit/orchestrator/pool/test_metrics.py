"""Tests the metrics that follow from decisions."""

import prometheus_client

from orchestrator.decisions.fair_share import Demand
from orchestrator.decisions.pool_size import Action, PodActivity, PodView, RetirePod, StartPod
from orchestrator.decisions.resources import Resources
from orchestrator.pool.metrics import measure, measure_wanted, wanted
from orchestrator.state.observation import Observation
from orchestrator.state.records import RUNNING, PodPhase, PodRecord, TournamentRecord
from orchestrator.state.runtime import RuntimeState
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

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


def value(tournament_id: str, name: str = "podrace_orchestrator_pods_wanted") -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(name, {"tournament_id": tournament_id})


def test_a_tournament_without_any_pod_has_zero_pods() -> None:
    entry = TournamentRecord("none", 1, TournamentSpec(), RUNNING, "", 0.0, None, 0.0, 0, 0, 0, "", 0, 0, None)
    pod = PodRecord("p0", "ended", 0, PodPhase.SEEN, 0.0, 1, 1.0, 1, 0, useful=False, drain_reason="")
    measure(Observation([entry], {}, {"none"}, set(), [pod], {}), RuntimeState(30.0))
    assert [value(name, "podrace_orchestrator_pods") for name in ("none", "ended", "gone")] == [0.0, 1.0, None]
    measure(Observation([], {}, set(), set(), [], {}), RuntimeState(30.0))
    assert [value(name, "podrace_orchestrator_pods") for name in ("none", "ended")] == [None, None]


def test_only_metrics_of_finished_tournaments_are_removed() -> None:
    measure_wanted({"a": 1, "b": 2})
    measure_wanted({"b": 3})
    assert (value("a"), value("b")) == (None, 3.0)
    measure_wanted({})
    assert value("b") is None
