from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decisions.pool_size import PodActivity
from orchestrator.state.pod_views import PodViews
from orchestrator.state.records import AgentRecord, PodPhase, PodRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from podrace.tournament.v1 import tournament_pb2


class Clock:
    """A clock that a test sets."""

    now, ahead = 100.0, 1_000_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def runtime() -> RuntimeState:
    return RuntimeState(30.0)


@pytest.fixture
def views(runtime: RuntimeState, clock: Any) -> PodViews:
    return PodViews(runtime, clock)


def pod(pod_id: str = "t-p0", start_time: float = 1_000_040.0) -> PodRecord:
    layout = tournament_pb2.LAYOUT_FUSED
    return PodRecord(pod_id, "t", 0, PodPhase.SEEN, start_time, layout, 1.0, 1 << 30, 0, useful=False, drain_reason="")


def test_a_view_is_created_again_only_when_its_record_changed(views: PodViews, clock: Clock) -> None:
    record = pod()
    (first,), (second,) = views.views_of(clock.now, [record]), views.views_of(clock.now, [record])
    assert second is first
    (third,) = views.views_of(clock.now, [replace(record, useful=True)])
    assert third is not first
    assert (third.pod_id, third.tournament_id, third.reserved, third.drained_since) == (
        "t-p0",
        "t",
        pod().reserved,
        None,
    )


def test_the_start_time_is_monotonic_and_never_in_the_future(views: PodViews, clock: Clock) -> None:
    # The wall clock was set back after the second pod was started.
    early, late = views.views_of(clock.now, [pod("t-p0", start_time=1_000_040.0), pod("t-p1", start_time=1_000_900.0)])
    assert (early.start_time, late.start_time) == (40.0, 100.0)


def test_a_pod_is_drained_since_its_record_first_had_a_reason(views: PodViews, clock: Clock) -> None:
    draining = replace(pod(), drain_reason="too many")
    views.views_of(clock.now, [draining])
    clock.now = 105.0
    views.mark_terminated("t-p0")
    for record in (draining, replace(draining, useful=True)):
        (view,) = views.views_of(clock.now, [record])
        assert (view.drained_since, view.terminated) == (100.0, True)


def test_the_view_of_a_gone_pod_is_dropped(views: PodViews, clock: Clock) -> None:
    draining, other = replace(pod(), drain_reason="too many"), pod("t-p1")
    views.views_of(clock.now, [draining, other])
    views.mark_terminated("t-p0")
    assert [view.pod_id for view in views.views_of(clock.now, [other])] == ["t-p1"]
    clock.now = 200.0
    (again, _) = views.views_of(clock.now, [draining, other])
    assert (again.drained_since, again.terminated) == (200.0, False)


def test_a_pod_is_drained_since_the_time_of_the_cycle(views: PodViews, clock: Clock) -> None:
    # The cycle compares it with its start time, and creating the views takes time.
    clock.now = 100.5
    (view,) = views.views_of(100.0, [replace(pod(), drain_reason="too many")])
    assert view.drained_since == 100.0


def test_a_returning_external_pod_is_no_longer_drained(views: PodViews, clock: Clock) -> None:
    views.views_of(clock.now, [replace(pod(), drain_reason="too many")])
    views.mark_terminated("t-p0")
    (view,) = views.views_of(clock.now, [pod()])
    assert (view.drained_since, view.terminated) == (None, False)


def test_the_activity_of_a_pod_is_read_when_it_is_needed(views: PodViews, runtime: RuntimeState, clock: Clock) -> None:
    (view,) = views.views_of(clock.now, [pod()])
    agent = AgentRecord("t-a0", "t", 0, WorkPhase.UNFINISHED, 1, "t-p0", "run", 0, None)
    runtime.grant_lease(agent, clock.now)
    assert view.activity(clock.now) == PodActivity(busy=True)
    runtime.release_pod("t-p0")
    assert view.activity(clock.now) == PodActivity()
