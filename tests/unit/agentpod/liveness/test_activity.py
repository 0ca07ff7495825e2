import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

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


async def test_a_phase_in_another_thread_lasts_until_its_function_returns_even_if_its_caller_is_cancelled() -> None:
    activity, free = Activity(), threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    calling = asyncio.create_task(activity.run(pb.ROLE_PHASE_PREPARING, free.wait, 60))
    await asyncio.sleep(0)
    assert activity.phase == pb.ROLE_PHASE_PREPARING
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert activity.phase == pb.ROLE_PHASE_PREPARING
    free.set()
    await asyncio.to_thread(lambda: "the only thread is free again")
    assert activity.phase == pb.ROLE_PHASE_IDLE


def test_of_several_threads_an_update_is_reported_first_and_a_wait_last() -> None:
    activity = Activity()
    activity.counter = WARM_UP_TICKS
    phases = (pb.ROLE_PHASE_UPDATING, pb.ROLE_PHASE_PREPARING, pb.ROLE_PHASE_WAITING)
    updating, preparing, waiting = (activity.doing(phase) for phase in phases)
    updating.__enter__()
    preparing.__enter__()
    waiting.__enter__()
    assert activity.phase == pb.ROLE_PHASE_UPDATING
    updating.__exit__(None, None, None)
    assert activity.phase == pb.ROLE_PHASE_PREPARING
    preparing.__exit__(None, None, None)
    assert activity.phase == pb.ROLE_PHASE_WAITING
    waiting.__exit__(None, None, None)
    assert activity.phase == pb.ROLE_PHASE_IDLE


def test_an_update_that_waits_for_the_group_is_a_wait_until_the_limit() -> None:
    now = 0.0
    activity = Activity(lambda: now)
    activity.counter = WARM_UP_TICKS
    with activity.doing(pb.ROLE_PHASE_UPDATING):
        with activity.waiting(20.0):
            now = 19.0
            assert activity.phase == pb.ROLE_PHASE_WAITING
        assert activity.phase == pb.ROLE_PHASE_UPDATING
        with activity.waiting(20.0):
            now = 39.0
            assert activity.phase == pb.ROLE_PHASE_UPDATING, "a GPU that hangs must not count as waiting forever"
