from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decisions.pool_size import PodActivity
from orchestrator.state.pod_views import PodViews
from orchestrator.state.records import AgentRecord, PodPhase, PodRecord, WorkPhase
from orchestrator.state.runtime import RuntimeState
from podrace.tournament.v1 import tournament_pb2


class Clock:
    """Goes as it is told."""

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


def test_a_view_is_made_once_and_again_when_its_record_has_changed(views: PodViews, clock: Clock) -> None:
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


def test_a_start_is_told_by_the_monotonic_clock_and_never_lies_ahead(views: PodViews, clock: Clock) -> None:
    # The wall clock was set back since the second one was started.
    early, late = views.views_of(clock.now, [pod("t-p0", start_time=1_000_040.0), pod("t-p1", start_time=1_000_900.0)])
    assert (early.start_time, late.start_time) == (40.0, 100.0)


def test_a_pod_is_told_to_go_when_its_record_first_says_so(views: PodViews, clock: Clock) -> None:
    terminating = replace(pod(), drain_reason="too many")
    views.views_of(clock.now, [terminating])
    clock.now = 105.0
    views.mark_terminated("t-p0")
    for record in (terminating, replace(terminating, useful=True)):
        (view,) = views.views_of(clock.now, [record])
        assert (view.drained_since, view.terminated) == (100.0, True)


def test_of_a_pod_that_is_gone_nothing_is_known_any_more(views: PodViews, clock: Clock) -> None:
    terminating, other = replace(pod(), drain_reason="too many"), pod("t-p1")
    views.views_of(clock.now, [terminating, other])
    views.mark_terminated("t-p0")
    assert [view.pod_id for view in views.views_of(clock.now, [other])] == ["t-p1"]
    clock.now = 200.0
    (again, _) = views.views_of(clock.now, [terminating, other])
    assert (again.drained_since, again.terminated) == (200.0, False)


def test_a_pod_is_told_to_go_at_the_moment_of_the_look(views: PodViews, clock: Clock) -> None:
    # It is compared with that moment, and the look takes time.
    clock.now = 100.5
    (view,) = views.views_of(100.0, [replace(pod(), drain_reason="too many")])
    assert view.drained_since == 100.0


def test_a_visitor_that_comes_back_is_told_to_go_no_more(views: PodViews, clock: Clock) -> None:
    views.views_of(clock.now, [replace(pod(), drain_reason="too many")])
    views.mark_terminated("t-p0")
    (view,) = views.views_of(clock.now, [pod()])
    assert (view.drained_since, view.terminated) == (None, False)


def test_what_a_pod_is_at_is_asked_when_it_matters(views: PodViews, runtime: RuntimeState, clock: Clock) -> None:
    (view,) = views.views_of(clock.now, [pod()])
    agent = AgentRecord("t-a0", "t", 0, WorkPhase.UNFINISHED, 1, "t-p0", "life", 0, None)
    runtime.grant_lease(agent, clock.now)
    assert view.activity(clock.now) == PodActivity(busy=True)
    runtime.release_pod("t-p0")
    assert view.activity(clock.now) == PodActivity()
