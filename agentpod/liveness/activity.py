"""Records what a role does: its phase, and a counter that grows with its progress."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from simulators.compilation import is_compiling

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
PRECEDING = (pb.ROLE_PHASE_COLLECTING, pb.ROLE_PHASE_UPDATING, pb.ROLE_PHASE_EVALUATING)
"""Phases that are reported before others of the same role, because their deadlines are learned."""
SIMULATES = (pb.ROLE_PHASE_OPENING, pb.ROLE_PHASE_COLLECTING, pb.ROLE_PHASE_EVALUATING)
"""Phases in which a role calls its simulator."""
WARM_UP_TICKS = 5
"""Steps after opening in which a simulator, or an update, may still compile."""


class Activity:
    """What one role does. Written by the threads that work, read by the event loop.

        with activity.doing(pb.ROLE_PHASE_COLLECTING):
            for _ in range(steps):
                activity.tick()
        await activity.run(pb.ROLE_PHASE_COLLECTING, finish_copies)     # in another thread

    Attributes:
        counter: Grows with every step of work.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counter = 0
        self._warm_at = WARM_UP_TICKS
        self._lock = threading.Lock()
        self._clock, self._waits_until = clock, -math.inf
        self._begun: dict[object, pb.RolePhase.ValueType] = {}
        """Phases that have begun and not ended, the newest last."""

    @property
    def phase(self) -> pb.RolePhase.ValueType:
        """What the role does now.

        WAITING in a block of `waiting`, within its limit. If several threads work: a phase of PRECEDING, else another
        phase than WAITING, and of these the newest.
        COMPILING in place of OPENING, COLLECTING and EVALUATING while a simulator compiles kernels in this process;
        WARMING_UP in place of another phase during the first steps after `open`.
        """
        phase = self._reported()
        if phase in SIMULATES and is_compiling():
            return pb.ROLE_PHASE_COMPILING
        return pb.ROLE_PHASE_WARMING_UP if phase in PRECEDING and self.counter < self._warm_at else phase

    def _reported(self) -> pb.RolePhase.ValueType:
        if self._clock() < self._waits_until:
            return pb.ROLE_PHASE_WAITING
        with self._lock:
            begun = list(self._begun.values())
        preceding = [phase for phase in begun if phase in PRECEDING]
        working = [phase for phase in begun if phase != pb.ROLE_PHASE_WAITING]
        return (preceding or working or begun or [pb.ROLE_PHASE_IDLE])[-1]

    def tick(self) -> None:
        """Records a step of work."""
        self.counter += 1

    def open(self) -> None:
        """Records that the next steps may take longer, because a simulator or a network is new."""
        self._warm_at = self.counter + WARM_UP_TICKS

    @contextlib.contextmanager
    def doing(self, phase: pb.RolePhase.ValueType) -> Iterator[None]:
        """Records a phase for the duration of a block; the phase around it returns afterwards."""
        mark = object()
        with self._lock:
            self._begun[mark] = phase
        try:
            yield
        finally:
            with self._lock:
                del self._begun[mark]

    @contextlib.contextmanager
    def waiting(self, limit_seconds: float) -> Iterator[None]:
        """Records for a block that the work of one thread waits for other processes.

        A wait that lasts longer than its limit is not believed: a GPU may hang, and the phase around it is reported.
        """
        self._waits_until = self._clock() + limit_seconds
        try:
            yield
        finally:
            self._waits_until = -math.inf

    async def run(
        self,
        phase: pb.RolePhase.ValueType,
        function: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Runs a function in another thread and records a phase until it returns, even if the caller is cancelled.

        Args:
            phase: What the function does.
            function: It may hang, for instance because it waits for a GPU.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What the function returned.
        """

        def work() -> Result:
            with self.doing(phase):
                return function(*args, **kwargs)

        # Recorded here as well, because no thread may be free.
        with self.doing(phase):
            return await asyncio.to_thread(work)

    def progress(self) -> pb.RoleProgress:
        """Returns the progress as a message."""
        return pb.RoleProgress(phase=self.phase, counter=self.counter)


class CountedCancellation(threading.Event):
    """An event that ends work early. Work checks it before each step, and each check counts as progress."""

    def __init__(self, activity: Activity) -> None:
        super().__init__()
        self._activity = activity

    def is_set(self) -> bool:
        """Returns whether the work has to end."""
        self._activity.tick()
        return super().is_set()
