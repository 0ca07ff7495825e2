import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentpod.config import PodConfig
from agentpod.liveness.activity import Activity
from agentpod.liveness.replacement import EXIT_STUCK, Replacement
from agentpod.liveness.role_watch import RoleAnswer
from agentpod.liveness.supervisor import Supervisor
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

COLLECTING = RoleAnswer(pb.ROLE_PHASE_COLLECTING, 1)


@dataclass(eq=False)
class StoppedProcess:
    """A process that is stopped, so that it dumps no stacks; no two are equal."""

    stopped: bool = True
    signals: list[signal.Signals] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


class Pod:
    """A learner with one worker, the answers to polls, and what the supervisor did."""

    def __init__(
        self, folder: Path, layout: str = "separate", process: StoppedProcess | None = None, **settings: Any
    ) -> None:
        config = PodConfig("p", "unix:o", "unix:l", "folder:///s", folder, layout=layout, **settings)
        self.process, self.roles = process, tuple[str, ...](("worker-0",))
        self.answer: RoleAnswer | None = COLLECTING
        self.activity, self.now = Activity(), 0.0
        self.shown: list[pb.RoleProgress] = []
        self.reported: list[pb.StuckRole] = []
        self.exits: list[Any] = []
        replacement = Replacement(self._show, self._report, self.exits.append, leave=self.exits.append)
        self.supervisor = Supervisor(
            config,
            "learner",
            self.activity,
            self._poll,
            replacement,
            find=lambda _: self.process,  # type: ignore[arg-type, return-value]
            clock=lambda: self.now,
        )

    def _show(self, roles: Any) -> None:
        self.shown = list(roles)

    async def _report(self, stuck: pb.StuckRole) -> None:
        self.reported.append(stuck)

    async def _poll(self) -> dict[str, RoleAnswer | None]:
        return dict.fromkeys(self.roles, self.answer)

    async def polls(self, count: int, *, steps: int = 0) -> None:
        for _ in range(count):
            self.now += 1.0
            if self.answer:
                self.answer = self.answer._replace(counter=self.answer.counter + steps)
            await self.supervisor.check()


async def test_a_stopped_worker_is_reported_and_killed(tmp_path: Path) -> None:
    process = StoppedProcess()
    pod = Pod(tmp_path, process=process)
    await pod.polls(10, steps=1)
    pod.answer = None
    await pod.polls(10)
    assert process.signals == [signal.SIGKILL]
    (stuck,) = pod.reported
    assert (stuck.progress.role, stuck.restarted) == ("worker-0", True)
    assert "its process is stopped" in stuck.reason
    assert stuck.stacks == "no stacks: a stopped process cannot dump them"
    assert pod.exits == []


async def learned(pod: Pod) -> None:
    """Lets the worker step once a second, until its deadline is that of its own steps: ten seconds."""
    await pod.polls(20, steps=1)
    (worker,) = [role for role in pod.shown if role.role == "worker-0"]
    assert worker.deadline_duration.seconds == 10


@pytest.mark.parametrize("phase", [pb.ROLE_PHASE_COMPILING, pb.ROLE_PHASE_WARMING_UP])
async def test_a_worker_that_compiles_is_not_replaced_at_the_deadline_of_its_steps(
    tmp_path: Path, phase: pb.RolePhase.ValueType
) -> None:
    pod = Pod(tmp_path, process=StoppedProcess(stopped=False), progress=ProgressDeadlines(ceiling_seconds=100.0))
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
    pod = Pod(tmp_path, process=process, progress=ProgressDeadlines(ceiling_seconds=100.0))
    await learned(pod)
    pod.answer = RoleAnswer(pb.ROLE_PHASE_COMPILING, 30)
    await pod.polls(100)
    assert pod.reported == []
    await pod.polls(1)
    (stuck,) = pod.reported
    assert "100.0 s in phase compiling; the deadline is 100.0 s (that of a phase that may take long)" in stuck.reason
    assert process.signals[-1] == signal.SIGKILL


async def test_a_slow_evaluation_gets_the_time_that_its_own_steps_take(tmp_path: Path) -> None:
    pod = Pod(tmp_path, process=StoppedProcess(stopped=False), progress=ProgressDeadlines(ceiling_seconds=300.0))
    await learned(pod)
    for step in range(6):
        pod.answer = RoleAnswer(pb.ROLE_PHASE_EVALUATING, 100 + step)
        await pod.polls(25)
    assert pod.reported == [], "each step takes 25 s; a step of the training has a deadline of 10 s"
    await pod.polls(250)
    (stuck,) = pod.reported
    assert "the deadline is 250.0 s (10 times the 99th percentile of 5 samples" in stuck.reason


async def test_the_pod_is_replaced_if_the_process_of_a_stuck_role_cannot_be_reached(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    await pod.polls(10, steps=1)
    await pod.polls(10)
    assert not pod.reported[0].restarted
    assert pod.exits == [f"worker-0: {pod.reported[0].reason}"]


async def test_a_learner_that_is_stuck_itself_reports_its_stacks_and_exits(tmp_path: Path) -> None:
    pod = Pod(tmp_path, process=StoppedProcess())
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
    pod = Pod(tmp_path, layout="fused", process=StoppedProcess())
    await pod.polls(10, steps=1)
    await pod.polls(10)
    assert pod.exits == [EXIT_STUCK]


async def test_a_role_that_was_restarted_by_others_may_open_again(tmp_path: Path) -> None:
    pod = Pod(tmp_path, process=StoppedProcess(stopped=False))
    await pod.polls(10, steps=1)
    pod.process = StoppedProcess(stopped=False)
    pod.answer = None
    await pod.polls(60)
    assert pod.reported == []


async def test_roles_of_one_process_are_replaced_together(tmp_path: Path) -> None:
    process = StoppedProcess()
    pod = Pod(tmp_path, layout="fused", process=process, isolated=True)
    pod.roles = ("worker-0", "evaluator")
    await pod.polls(10, steps=1)
    pod.answer = None
    await pod.polls(12)
    assert len(pod.reported) == 1
    assert process.signals == [signal.SIGKILL]
    assert pod.exits == []


async def test_every_poll_shows_the_progress_of_all_roles(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    await pod.polls(3, steps=7)
    assert [(role.role, role.counter) for role in pod.shown] == [("learner", 0), ("worker-0", 22)]
