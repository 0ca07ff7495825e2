"""A learner with one worker, whose supervisor is driven by a clock that advances by a second with each poll."""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentpod.config import PodConfig
from agentpod.liveness.activity import Activity
from agentpod.liveness.role_watch import RoleAnswer
from agentpod.liveness.supervisor import Supervisor
from agentpod.liveness.supervisor_actions import SupervisorActions
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

COLLECTING = RoleAnswer(pb.ROLE_PHASE_COLLECTING, 1)
IDLE = RoleAnswer(pb.ROLE_PHASE_IDLE, 1)


@dataclass(eq=False)
class StoppedProcess:
    """A process that is stopped and has no file for its stacks; no two are equal."""

    stopped: bool = True
    signals: list[signal.Signals] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)


class SupervisedPod:
    """A learner with one worker, the answers to polls, and what the supervisor did."""

    def __init__(
        self,
        folder: Path,
        layout: str = "separate",
        process: StoppedProcess | None = None,
        activity: Activity | None = None,
        **settings: Any,
    ) -> None:
        self.config = config = PodConfig("p", "unix:o", "unix:l", "folder:///s", folder, layout=layout, **settings)
        self.process, self.roles = process, tuple[str, ...](("worker-0",))
        self.answer: RoleAnswer | None = COLLECTING
        self.activity, self.now = activity or Activity(), 0.0
        self.updates: int | None = None
        self.shown: list[pb.RoleProgress] = []
        self.reported: list[pb.StuckRole] = []
        self.exits: list[Any] = []
        actions = SupervisorActions(self._show, self._report, self.exits.append, leave=self.exits.append)
        self.supervisor = Supervisor(
            config,
            "learner",
            self.activity,
            self._poll,
            actions,
            lambda: self.updates,
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

    async def learned(self) -> None:
        """Updates once a second, until the deadline of an update is ten seconds."""
        self.activity.counter = 100
        with self.activity.doing(pb.ROLE_PHASE_UPDATING):
            for _ in range(10):
                self.activity.tick()
                await self.polls(1, steps=1)
