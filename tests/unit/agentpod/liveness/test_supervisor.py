import asyncio
import signal
import threading
from pathlib import Path

import pytest
from supervised_pod import IDLE, StoppedProcess, SupervisedPod

from agentpod.liveness.role_watch import RoleAnswer
from agentpod.liveness.stacks import stacks_file
from agentpod.liveness.supervisor_actions import EXIT_STUCK
from agentpod.storage_waits import StorageWaits
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines


async def test_a_stopped_worker_is_reported_and_killed(tmp_path: Path) -> None:
    process = StoppedProcess()
    pod = SupervisedPod(tmp_path, process=process)
    await pod.polls(10, steps=1)
    pod.answer = None
    await pod.polls(10)
    assert process.signals == [signal.SIGKILL]
    (stuck,) = pod.reported
    assert (stuck.progress.role, stuck.restarted) == ("worker-0", True)
    assert "its process is stopped" in stuck.reason
    assert stuck.stacks == "no stacks: the process has not started to listen for the signal"
    assert pod.exits == []


async def learned(pod: SupervisedPod) -> None:
    """Lets the worker step once a second, until its deadline is that of its own steps: ten seconds."""
    await pod.polls(20, steps=1)
    (worker,) = [role for role in pod.shown if role.role == "worker-0"]
    assert worker.deadline_duration.seconds == 10


@pytest.mark.parametrize("phase", [pb.ROLE_PHASE_COMPILING, pb.ROLE_PHASE_WARMING_UP])
async def test_a_worker_that_compiles_is_not_replaced_at_the_deadline_of_its_steps(
    tmp_path: Path, phase: pb.RolePhase.ValueType
) -> None:
    pod = SupervisedPod(
        tmp_path, process=StoppedProcess(stopped=False), progress=ProgressDeadlines(ceiling_seconds=100.0)
    )
    await learned(pod)
    pod.answer = RoleAnswer(phase, 30)
    await pod.polls(99)
    assert pod.reported == []
    pod.answer = RoleAnswer(pb.ROLE_PHASE_COLLECTING, 31)
    await pod.polls(20, steps=1)
    assert pod.reported == []
    (worker,) = [role for role in pod.shown if role.role == "worker-0"]
    assert worker.deadline_duration.seconds == 10, "the compilation is no sample of its steps"


async def test_a_worker_that_hangs_while_it_compiles_is_replaced_at_the_ceiling(tmp_path: Path) -> None:
    process = StoppedProcess(stopped=False)
    pod = SupervisedPod(tmp_path, process=process, progress=ProgressDeadlines(ceiling_seconds=100.0))
    await learned(pod)
    pod.answer = RoleAnswer(pb.ROLE_PHASE_COMPILING, 30)
    await pod.polls(100)
    assert pod.reported == []
    await pod.polls(1)
    (stuck,) = pod.reported
    assert "100.0 s in phase compiling; the deadline is 100.0 s (that of a phase that may take long)" in stuck.reason
    assert process.signals[-1] == signal.SIGKILL


async def test_a_slow_evaluation_gets_the_time_that_its_own_steps_take(tmp_path: Path) -> None:
    pod = SupervisedPod(
        tmp_path, process=StoppedProcess(stopped=False), progress=ProgressDeadlines(ceiling_seconds=300.0)
    )
    await learned(pod)
    for step in range(6):
        pod.answer = RoleAnswer(pb.ROLE_PHASE_EVALUATING, 100 + step)
        await pod.polls(25)
    assert pod.reported == [], "each step takes 25 s; a step of the training has a deadline of 10 s"
    await pod.polls(250)
    (stuck,) = pod.reported
    assert "the deadline is 250.0 s (10 times the 99th percentile of 5 samples" in stuck.reason


async def test_the_pod_is_replaced_if_the_process_of_a_stuck_role_cannot_be_reached(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path)
    await pod.polls(10, steps=1)
    await pod.polls(10)
    assert not pod.reported[0].restarted
    assert pod.reported[0].stacks == "no stacks: the role dumped none since its last progress"
    assert pod.exits == [f"worker-0: {pod.reported[0].reason}"]


async def test_a_role_in_another_container_is_reported_with_the_stacks_that_it_dumped(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path)
    await pod.polls(10, steps=1)
    dump = 'Thread 0x1 (most recent call first):\n  File "/gym/env.py", line 7 in step\n'
    stacks_file(tmp_path, "worker-0").write_text(dump)
    await pod.polls(10)
    assert [stuck.stacks for stuck in pod.reported] == ["step (gym/env.py:7)"]


async def test_a_learner_that_is_stuck_itself_reports_its_stacks_and_exits(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path, process=StoppedProcess())
    pod.activity.counter = 100
    with pod.activity.doing(pb.ROLE_PHASE_UPDATING):
        for _ in range(10):
            pod.activity.tick()
            await pod.polls(1, steps=1)
        await pod.polls(10, steps=1)
    (stuck,) = pod.reported
    assert stuck.progress.role == "learner"
    assert "check (liveness/supervisor.py:" in stuck.stacks
    assert pod.exits == [EXIT_STUCK]


async def test_a_stuck_worker_of_a_fused_pod_ends_the_process(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path, layout="fused", process=StoppedProcess())
    await pod.polls(10, steps=1)
    await pod.polls(10)
    assert pod.exits == [EXIT_STUCK]


async def test_a_role_that_was_restarted_by_others_may_open_again(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path, process=StoppedProcess(stopped=False))
    await pod.polls(10, steps=1)
    pod.process = StoppedProcess(stopped=False)
    pod.answer = None
    await pod.polls(60)
    assert pod.reported == []


async def test_a_worker_that_hangs_twice_is_replaced_twice_at_the_deadline_of_its_steps(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path, process=StoppedProcess(stopped=False))
    await learned(pod)
    pod.answer = None
    await pod.polls(10)
    pod.process = restarted = StoppedProcess(stopped=False)
    pod.answer = RoleAnswer(pb.ROLE_PHASE_COLLECTING, 5)
    await pod.polls(2, steps=1)
    pod.answer = None
    await pod.polls(11)
    assert [stuck.progress.phase for stuck in pod.reported] == 2 * [pb.ROLE_PHASE_COLLECTING]
    assert restarted.signals == [signal.SIGKILL]


async def test_roles_of_one_process_are_replaced_together(tmp_path: Path) -> None:
    process = StoppedProcess()
    pod = SupervisedPod(tmp_path, layout="fused", process=process, isolated=True)
    pod.roles = ("worker-0", "evaluator")
    await pod.polls(10, steps=1)
    pod.answer = None
    await pod.polls(12)
    assert len(pod.reported) == 1
    assert process.signals == [signal.SIGKILL]
    assert pod.exits == []


async def test_every_poll_shows_the_progress_of_all_roles(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path)
    await pod.polls(3, steps=7)
    assert [(role.role, role.counter) for role in pod.shown] == [("learner", 0), ("worker-0", 22)]


async def test_a_learner_whose_other_thread_hangs_reports_its_stacks_and_exits(tmp_path: Path) -> None:
    pod, free = SupervisedPod(tmp_path, process=StoppedProcess()), threading.Event()
    await pod.learned()
    hanging = asyncio.create_task(pod.activity.run(pb.ROLE_PHASE_UPDATING, free.wait, 60))
    await asyncio.sleep(0)
    await pod.polls(11, steps=1)
    (stuck,) = pod.reported
    assert (stuck.progress.role, pod.exits) == ("learner", [EXIT_STUCK])
    assert "run (liveness/activity.py" in stuck.stacks or "work (liveness/activity.py" in stuck.stacks
    free.set()
    await hanging


async def trained(pod: SupervisedPod) -> None:
    """Makes an update a second."""
    for update in range(20):
        pod.updates = update
        await pod.polls(1, steps=1)


async def test_a_pod_in_which_every_role_waits_for_another_publishes_and_is_replaced(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path, process=StoppedProcess(stopped=False))
    await trained(pod)
    pod.answer = IDLE
    await pod.polls(11)
    (stuck,) = pod.reported
    assert (stuck.progress.role, stuck.progress.age_duration.seconds, stuck.restarted) == ("learner", 10, False)
    assert stuck.reason == (
        "no role of the pod works: 10.0 s in phase idle; the deadline is 10.0 s (10 times the 99th percentile of 19"
        " samples, 1.00 s)"
    )
    assert "check (liveness/supervisor.py:" in stuck.stacks
    assert pod.exits == [stuck.reason], "it is asked to publish, and not ended at once"


async def test_a_pod_is_not_idle_while_it_waits_for_something_outside(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path)
    await trained(pod)
    pod.answer = IDLE
    with pod.activity.doing(pb.ROLE_PHASE_WAITING):
        await pod.polls(700)
    assert pod.reported == []


async def test_storage_that_does_not_answer_is_a_storage_fault_and_no_stuck_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentpod.storage_waits.HUNG_SECONDS", 0.0)
    pod, faults, answer = SupervisedPod(tmp_path), asyncio.Queue[str](), asyncio.Event()
    await trained(pod)
    pod.answer = IDLE
    waits = StorageWaits(asyncio.get_running_loop().create_future(), faults.put_nowait, pod.activity)
    waiting = asyncio.create_task(waits.until_stored(answer.wait))
    assert "storage has not answered" in await faults.get()
    await pod.polls(700)
    assert (pod.reported, pod.exits) == ([], [])
    assert {role.phase for role in pod.shown if role.role == "learner"} == {pb.ROLE_PHASE_WAITING}
    answer.set()
    await waiting


@pytest.mark.parametrize("settings", [{"worker_address": "127.0.0.1:1"}, {"worker_class": "python:own:Worker"}])
async def test_a_worker_of_the_user_need_not_report_what_it_does(tmp_path: Path, settings: dict[str, str]) -> None:
    pod = SupervisedPod(tmp_path, **settings)
    await trained(pod)
    pod.answer = IDLE
    await pod.polls(700)
    assert pod.reported == []


async def test_a_phase_that_this_build_does_not_know_has_the_longest_deadline(tmp_path: Path) -> None:
    pod = SupervisedPod(tmp_path, process=StoppedProcess(stopped=False))
    pod.answer = RoleAnswer(99, 1)  # type: ignore[arg-type]
    await pod.polls(601)
    assert "in phase 99; the deadline is 600.0 s" in pod.reported[0].reason
