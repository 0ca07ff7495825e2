"""Watches the roles of a learner and replaces those that make no progress.

A stuck worker, evaluator or follower is killed where its process can be reached; the fork server starts another one,
and the learner opens its roles again. Otherwise the pod is replaced. The learner itself is watched as well: its event
loop is alive while one of its threads hangs, so it reports its own stacks before it exits. If no role works, because
each waits for another one, the learner publishes what it has, and the pod is replaced.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping

import prometheus_client
import structlog

from agentpod.config import PodConfig
from agentpod.liveness import stacks
from agentpod.liveness.activity import Activity
from agentpod.liveness.deadlines import Verdict
from agentpod.liveness.idle_pod import IdlePod
from agentpod.liveness.role_processes import find_process
from agentpod.liveness.role_watch import RoleAnswer, RoleWatch
from agentpod.liveness.supervisor_actions import SupervisorActions
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.processes.identity import Process

POLL_SECONDS = 1.0
STUCK = prometheus_client.Counter("podrace_learner_stuck_roles", "Roles that made no progress and were replaced")
_log = structlog.get_logger(__name__)


class Supervisor:
    """Watches the roles of one learner during one assignment.

    supervising = asyncio.create_task(supervisor.run())
    ...
    supervising.cancel()
    """

    def __init__(
        self,
        config: PodConfig,
        role: str,
        activity: Activity,
        poll: Callable[[], Awaitable[Mapping[str, RoleAnswer | None]]],
        actions: SupervisorActions,
        updates: Callable[[], int | None] = lambda: None,
        *,
        find: Callable[[str], Process | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without history: the deadlines of an agent follow from its own progress.

        Args:
            config: Configuration of the pod.
            role: Role of this learner.
            activity: What this learner does.
            poll: Asks the other roles.
            actions: Reports and replaces.
            updates: Returns the number of updates so far while the pod trains; None while it does not.
            find: Returns the process of a role that can be killed from here; None: as the pod's file lists it.
            clock: Monotonic clock in seconds.
        """
        self._config, self._role, self._activity, self._poll = config, role, activity, poll
        self._actions, self._clock = actions, clock
        self._find = find or (lambda name: find_process(config.folder, name))
        self._watches: dict[str, RoleWatch] = {}
        self._known: dict[str, Process | None] = {}
        self._idle = IdlePod(config.progress, updates, clock())
        # The methods of a worker of the user need not report what they do. Their calls have a deadline.
        self._judges_idle = not (config.worker_address or config.worker_class)

    async def run(self) -> None:
        """Polls and judges until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.check()
            except Exception:
                # Training continues without supervision for a moment; the next poll starts again.
                _log.exception("the roles could not be watched this time")

    async def check(self) -> None:
        """Polls all roles once, and replaces those that are stuck."""
        own = RoleAnswer(self._activity.phase, self._activity.counter)
        answers = {self._role: own, **await self._poll()}
        now = self._clock()
        for role, answer in answers.items():
            watch = self._watches.setdefault(role, RoleWatch(role, self._config.progress, now))
            process = self._seen_process(watch, answer)
            watch.observe(now, answer, stopped=not answer and process is not None and process.stopped)
        self._actions.show([self._watches[role].message() for role in answers])
        for role in answers:
            if (verdict := self._watches[role].judge()).stuck:
                await self._replace(role, verdict)
        self._idle.observe(now, answers)
        if self._judges_idle and (verdict := self._idle.judge()).stuck:
            await self._replace_idle(verdict)

    def _seen_process(self, watch: RoleWatch, answer: RoleAnswer | None) -> Process | None:
        """Returns the process of a role; a role that was restarted meanwhile may open and compile again."""
        role = watch.role
        if answer and watch.answers and role in self._known and answer.counter >= watch.counter:
            return self._known[role]
        process = self._process(role)
        if answer is None and self._known.get(role) and process != self._known[role]:
            watch.restart(stuck=False)
        self._known[role] = process or (None if answer else self._known.get(role))
        return process

    def _process(self, role: str) -> Process | None:
        """Returns the process that runs another role, if it can be killed from here."""
        return None if self._is_own(role) else self._find(self._config.process_of(role))

    def _is_own(self, role: str) -> bool:
        return self._config.process_of(role) == self._role

    async def _replace(self, role: str, verdict: Verdict) -> None:
        watch, process = self._watches[role], self._process(role)
        stuck = pb.StuckRole(progress=watch.message(), reason=verdict.reason, restarted=process is not None)
        stuck.stacks = await self._stacks(stuck.progress, process)
        self._record(stuck)
        for other in self._watches.values():
            if self._config.process_of(other.role) == self._config.process_of(role):
                other.restart(stuck=other is watch)
        if process:
            # Killed first: the report may wait for the orchestrator.
            process.signal(signal.SIGKILL)
        await self._actions.report(stuck)
        if not process:
            await self._actions.replace_pod(f"{role}: {verdict.reason}", stuck_process=self._is_own(role))

    async def _replace_idle(self, verdict: Verdict) -> None:
        stuck = pb.StuckRole(progress=self._watches[self._role].message(), reason=verdict.reason)
        self._idle.stamp(stuck.progress)
        stuck.stacks = stacks.own_stacks()
        self._record(stuck)
        self._idle.restart()
        await self._actions.report(stuck)
        # No thread of this process hangs, so it can publish.
        await self._actions.replace_pod(verdict.reason, stuck_process=False)

    def _record(self, stuck: pb.StuckRole) -> None:
        STUCK.inc()
        _log.error("a role is stuck", role=stuck.progress.role, reason=stuck.reason, stacks=stuck.stacks)

    async def _stacks(self, progress: pb.RoleProgress, process: Process | None) -> str:
        folder, other = self._config.folder, self._config.process_of(progress.role)
        if self._is_own(progress.role):
            return stacks.own_stacks()
        if process:
            return await stacks.stacks_of(process, folder, other)
        return await stacks.last_stacks(folder, other, progress.age_duration.ToNanoseconds() / 1e9)
