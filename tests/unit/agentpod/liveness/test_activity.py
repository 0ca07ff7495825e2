import pytest

from agentpod.liveness.activity import WARM_UP_TICKS, Activity, CountedCancellation
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from simulators.compilation import compiling


def test_phases_nest_and_return() -> None:
    activity = Activity()
    with activity.doing(pb.ROLE_PHASE_PREPARING):
        with activity.doing(pb.ROLE_PHASE_OPENING):
            assert activity.phase == pb.ROLE_PHASE_OPENING
        assert activity.phase == pb.ROLE_PHASE_PREPARING
    assert activity.phase == pb.ROLE_PHASE_IDLE


def test_the_first_steps_after_opening_are_a_warm_up() -> None:
    activity = Activity()
    activity.counter = 70
    activity.open()
    with activity.doing(pb.ROLE_PHASE_COLLECTING):
        for _ in range(WARM_UP_TICKS):
            assert activity.phase == pb.ROLE_PHASE_WARMING_UP
            activity.tick()
        assert activity.phase == pb.ROLE_PHASE_COLLECTING


@pytest.mark.parametrize("phase", [pb.ROLE_PHASE_OPENING, pb.ROLE_PHASE_COLLECTING, pb.ROLE_PHASE_EVALUATING])
def test_a_simulator_that_compiles_is_reported_whenever_it_is_called(phase: pb.RolePhase.ValueType) -> None:
    activity = Activity()
    activity.counter = WARM_UP_TICKS
    with activity.doing(phase):
        with compiling("kernels"):
            assert activity.phase == pb.ROLE_PHASE_COMPILING
        assert activity.phase == phase


def test_a_compilation_does_not_hide_what_needs_no_simulator() -> None:
    activity = Activity()
    activity.counter = WARM_UP_TICKS
    with activity.doing(pb.ROLE_PHASE_UPDATING), compiling("kernels"):
        assert activity.phase == pb.ROLE_PHASE_UPDATING


def test_each_check_for_cancellation_is_progress() -> None:
    activity = Activity()
    cancelled = CountedCancellation(activity)
    assert not cancelled.is_set()
    cancelled.set()
    assert cancelled.is_set()
    assert activity.progress().counter == 2
