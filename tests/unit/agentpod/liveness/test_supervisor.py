import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentpod.config import PodConfig
from agentpod.liveness.activity import Activity
from agentpod.liveness.replacement import EXIT_STUCK, Replacement
from agentpod.liveness.role_watch import RoleAnswer
from agentpod.liveness.supervisor import Supervisor
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

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
