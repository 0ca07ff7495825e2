"""Keeps the memory of foreign steps up to date while an agent is trained."""

import asyncio
import time
from collections.abc import Callable

import prometheus_client
import structlog

from agentpod.experience.foreign_memory import ForeignMemory
from agentpod.learner.interfaces import CheckpointAccess, ForeignSteps, LeaseStatus
from agentpod.learner.progress_reporter import ProgressReporter
from podrace.errors import InvalidArgument, PodraceError
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tasks import cancel_all, wait_at_most

_log = structlog.get_logger(__name__)
PERIOD_SECONDS = 5.0
"""Time between two polls for new steps of other agents."""
FOREIGN_STEPS = prometheus_client.Counter(
    "podrace_learner_foreign_steps", "Environment steps of other agents that were received"
)


class ExperienceFeed:
    """Reads the experience of other agents in the background, and reports what it received.

        feed = ExperienceFeed(checkpoints, memory, progress, lease)
        feed.start()
        ...                 # batches are sampled from memory.replay as well
        await feed.close()

    Attributes:
        memory: Steps of other agents.
    """

    def __init__(
        self,
        checkpoints: CheckpointAccess,
        memory: ForeignMemory,
        progress: ProgressReporter,
        lease: LeaseStatus,
        *,
        period_seconds: float = PERIOD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the feed, which reads from `start` on.

        Args:
            checkpoints: Where the steps come from.
            memory: Where they are kept.
            progress: Where the training reports its progress.
            lease: Lease on the agent; reading stops when the work must end.
            period_seconds: Time between two polls for new steps.
            clock: Monotonic clock in seconds.
        """
        self._checkpoints, self._progress, self._lease = checkpoints, progress, lease
        self._period_seconds, self._clock = period_seconds, clock
        self.memory = memory
        self._received = pb.SharedExperience()
        self._agents: set[str] = set()
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to read."""
        self._reading = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops reading."""
        if self._reading:
            await cancel_all(self._reading)

    async def _run(self) -> None:
        while not self._lease.stop.done():
            await self.read_once()
            await wait_at_most(asyncio.shield(self._lease.stop), self._period_seconds)

    async def read_once(self) -> None:
        """Reads new steps, and reports them. After an error, the next poll tries again."""
        try:
            for found in await self._checkpoints.read_experience(self.memory.replay):
                self._add(found)
        except PodraceError as error:
            _log.warning("the experience of other agents was not read", error=error.message)
        except Exception:  # the training continues without these steps
            _log.exception("the experience of other agents was not read")
        filled = self.memory.filled(self._clock())
        self._received.memory_steps, self._received.age_seconds = filled.steps, max(0.0, filled.age_seconds)
        self._progress.report_shared_experience(self._received)

    def _add(self, found: ForeignSteps) -> None:
        left_out, published = found.left_out, self._clock() - found.age_seconds
        for run in found.runs:
            try:
                added = self.memory.add(run, published)
            except InvalidArgument as error:
                left_out = error.message
                continue
            self._agents.add(found.agent_id)
            FOREIGN_STEPS.inc(added)
            self._received.environment_steps += added
        self._received.agents = len(self._agents)
        if left_out:
            self._received.left_out = f"replay memory of {found.agent_id}: {left_out}"
            _log.warning("steps of another agent are left out", source=found.agent_id, reason=left_out)
