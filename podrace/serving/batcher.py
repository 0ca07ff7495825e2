"""Computes the requests of one version in batches, on the event loop or in a thread.

A small batch takes less time than its way to another thread and back, so it is computed on the event loop. A large one
is computed in the thread, while the loop collects the next batch.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from podrace.errors import Cancelled, DeadlineExceeded, Internal, InvalidArgument, PodraceError, ResourceExhausted
from podrace.serving import metrics
from podrace.serving.decisions.batch_cut import BatchLimits, Waiting, admits, cut, expired
from podrace.serving.policy_version import PolicyVersion

INLINE_SECONDS = 0.0005
"""Batches that take less time are computed on the event loop."""
SMOOTHING = 0.2
"""Weight of the latest batch in the time that batches of its size take."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class BatchItem:
    """A request for actions."""

    observation: NDArray[Any]
    """[N, *shape]."""
    state: NDArray[np.float32] | None = None
    """[N, S]; None: zeros."""
    random: np.random.Generator | None = None
    """Samples the actions; None: actions without exploration."""
    deadline: float = math.inf
    """Time on the clock of the batcher after which the caller does not wait any longer."""


class ActResult(NamedTuple):
    """The answer to a BatchItem."""

    version: str
    action: NDArray[Any]
    """[N, ...]."""
    next_state: NDArray[np.float32]
    """[N, S]."""


class _Queued(NamedTuple):
    ask: BatchItem
    waiting: Waiting
    answer: "asyncio.Future[ActResult]"


class Batcher:
    """Answers the requests of one version. Lives on the event loop; only it reads and changes the queue.

    batcher = Batcher(policy, limits, executor)
    acted = await batcher.act(BatchItem(observation))
    await batcher.close()
    """

    def __init__(
        self,
        policy: PolicyVersion,
        limits: BatchLimits,
        executor: Executor,
        clock: Callable[[], float],
        inline_seconds: float = INLINE_SECONDS,
    ) -> None:
        """Creates it with an empty queue.

        Args:
            policy: The version.
            limits: Sizes and times of batches.
            executor: Runs large batches.
            clock: Returns seconds, as the event loop's `time`.
            inline_seconds: Batches that take less time are computed on the event loop.
        """
        self.policy = policy
        self._limits, self._executor, self._clock, self._inline_seconds = limits, executor, clock, inline_seconds
        self._queue: deque[_Queued] = deque()
        self._rows = 0
        self._compute_seconds = 0.0
        self._times: dict[int, float] = {}
        """Time that a batch takes, by the number of bits of its number of rows."""
        self._computing: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def act(self, ask: BatchItem) -> ActResult:
        """Returns the actions of a request.

        Raises:
            InvalidArgument: The actions would be sampled, and the policy is an ensemble.
            ResourceExhausted: Too many observations wait.
            DeadlineExceeded: The deadline passed before its batch began.
            Cancelled: The batcher was closed.
        """
        if ask.random is not None and not self.policy.samples:
            raise InvalidArgument("an ensemble acts without exploration: ask for actions that are not sampled")
        rows = len(ask.observation)
        if not admits(self._rows, rows, self._limits):
            raise ResourceExhausted(
                f"{self._rows} observations wait for policy {self.policy.version[:12]} (limit:"
                f" {self._limits.queued_rows}): try again",
                retry_seconds=max(0.05, self._compute_seconds),
            )
        answer: asyncio.Future[ActResult] = asyncio.get_running_loop().create_future()
        self._queue.append(_Queued(ask, Waiting(rows, self._clock(), ask.deadline), answer))
        self._count(rows)
        self._idle.clear()
        if self._computing is None and (self._timer is None or isinstance(self._timer, asyncio.TimerHandle)):
            # Not at once: requests that arrive in the same iteration of the loop join the batch.
            self._schedule(0.0)
        return await answer

    async def drained(self) -> None:
        """Waits until no request waits or is being computed."""
        await self._idle.wait()

    def close(self) -> None:
        """Refuses what waits."""
        if self._timer:
            self._timer.cancel()
        for queued in self._queue:
            self._count(-queued.waiting.rows)
            if not queued.answer.done():
                queued.answer.set_exception(Cancelled("the server stops"))
        self._queue.clear()

    def _count(self, rows: int) -> None:
        self._rows += rows
        metrics.QUEUED_ROWS.inc(rows)

    def _schedule(self, seconds: float) -> None:
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._next) if seconds > 0.0 else loop.call_soon(self._next)

    def _next(self) -> None:
        """Computes the next batch, or waits for the time to decide again."""
        self._timer = None
        while self._computing is None:
            self._drop_expired()
            waiting = [queued.waiting for queued in self._queue]
            decided = cut(waiting, self._clock(), self._limits, self._compute_seconds)
            if not decided.take:
                if math.isfinite(decided.wait_seconds):
                    self._schedule(decided.wait_seconds)
                break
            batch = [self._queue.popleft() for _ in range(decided.take)]
            rows = sum(queued.waiting.rows for queued in batch)
            self._count(-rows)
            if self._times.get(rows.bit_length(), math.inf) < self._inline_seconds:
                self._answer(batch, self._compute(batch))
            else:
                self._computing = asyncio.get_running_loop().create_task(self._compute_in_thread(batch))
        if self._computing is None and not self._queue:
            self._idle.set()

    def _drop_expired(self) -> None:
        gone = set(expired([queued.waiting for queued in self._queue], self._clock()))
        abandoned = {index for index, queued in enumerate(self._queue) if queued.answer.done()}
        if not gone and not abandoned:
            return
        kept: deque[_Queued] = deque()
        for index, queued in enumerate(self._queue):
            if index not in gone | abandoned:
                kept.append(queued)
                continue
            self._count(-queued.waiting.rows)
            if not queued.answer.done():
                queued.answer.set_exception(DeadlineExceeded("the deadline passed while the request waited"))
        self._queue = kept

    async def _compute_in_thread(self, batch: list[_Queued]) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._answer(batch, await loop.run_in_executor(self._executor, self._compute, batch))
        finally:
            self._computing = None
            self._next()

    def _compute(self, batch: list[_Queued]) -> list[ActResult | PodraceError]:
        """Returns the answer to each request of a batch."""
        started = self._clock()
        try:
            found = self._run([queued.ask for queued in batch])
        except Exception as error:  # the classes of ONNX Runtime share no base
            return [self._reported(error, len(batch))] * len(batch)
        self._compute_seconds = taken = self._clock() - started
        size = sum(queued.waiting.rows for queued in batch).bit_length()
        self._times[size] = taken + (1.0 - SMOOTHING) * (self._times.get(size, taken) - taken)
        metrics.COMPUTE_SECONDS.observe(taken)
        return found

    def _reported(self, error: Exception, requests: int) -> PodraceError:
        if isinstance(error, PodraceError):
            return error
        _log.error("a batch failed", version=self.policy.version, exc_info=error)
        return Internal(f"policy {self.policy.version[:12]} failed on {requests} requests: {error}")

    def _run(self, asks: list[BatchItem]) -> list[ActResult | PodraceError]:
        policy = self.policy
        rows = [len(ask.observation) for ask in asks]
        observation = asks[0].observation if len(asks) == 1 else np.concatenate([ask.observation for ask in asks])
        states = [
            np.zeros((count, policy.state_size), np.float32) if ask.state is None else ask.state
            for ask, count in zip(asks, rows, strict=True)
        ]
        state = states[0] if len(states) == 1 else np.concatenate(states)
        found = policy.compute(observation, state, outputs=any(ask.random for ask in asks))
        metrics.BATCH_ROWS.observe(len(observation))
        metrics.ROWS.inc(len(observation))
        acted: list[ActResult | PodraceError] = []
        start = 0
        for ask, count in zip(asks, rows, strict=True):
            own = {name: values[start : start + count] for name, values in found.items()}
            start += count
            try:
                action = own["action"] if ask.random is None else policy.sampled(own, ask.random)
            except Exception as error:
                # Of this request alone: the others of the batch have their actions.
                acted.append(self._reported(error, 1))
                continue
            acted.append(ActResult(policy.version, action, own.get("next_state", states[0][:0])))
        return acted

    def _answer(self, batch: list[_Queued], found: list[ActResult | PodraceError]) -> None:
        for queued, one in zip(batch, found, strict=True):
            if queued.answer.done():
                continue
            if isinstance(one, PodraceError):
                queued.answer.set_exception(one)
            else:
                queued.answer.set_result(one)
