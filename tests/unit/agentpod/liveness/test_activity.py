from agentpod.liveness.activity import WARM_UP_TICKS, Activity, CountedCancellation
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


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


def test_each_check_for_cancellation_is_progress() -> None:
    activity = Activity()
    cancelled = CountedCancellation(activity)
    assert not cancelled.is_set()
    cancelled.set()
    assert cancelled.is_set()
    assert activity.progress().counter == 2
