"""Records what a role does: its phase, and a counter that grows with its progress."""

import contextlib
import threading
from collections.abc import Iterator

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from simulators.compilation import is_compiling

SIMULATES = (pb.ROLE_PHASE_OPENING, pb.ROLE_PHASE_COLLECTING, pb.ROLE_PHASE_EVALUATING)
"""Phases in which a role calls its simulator."""
WARM_UP_TICKS = 5
"""Steps after opening in which a simulator, or an update, may still compile."""


class Activity:
    """What one role does. Written by the thread that works, read by the event loop.

        with activity.doing(pb.ROLE_PHASE_COLLECTING):
            for _ in range(steps):
                activity.tick()

    Attributes:
        counter: Grows with every step of work.
    """

    def __init__(self) -> None:
        self.counter = 0
        self._phase: pb.RolePhase.ValueType = pb.ROLE_PHASE_IDLE
        self._warm_at = WARM_UP_TICKS

    @property
    def phase(self) -> pb.RolePhase.ValueType:
        """What the role does now.

        COMPILING in place of OPENING, COLLECTING and EVALUATING while a simulator compiles kernels in this process;
        WARMING_UP in place of another phase during the first steps after `open`.
        """
        if self._phase in SIMULATES and is_compiling():
            return pb.ROLE_PHASE_COMPILING
        ticking = self._phase in (pb.ROLE_PHASE_COLLECTING, pb.ROLE_PHASE_UPDATING, pb.ROLE_PHASE_EVALUATING)
        return pb.ROLE_PHASE_WARMING_UP if ticking and self.counter < self._warm_at else self._phase

    def tick(self) -> None:
        """Records a step of work."""
        self.counter += 1

    def open(self) -> None:
        """Records that the next steps may take longer, because a simulator or a network is new."""
        self._warm_at = self.counter + WARM_UP_TICKS

    @contextlib.contextmanager
    def doing(self, phase: pb.RolePhase.ValueType) -> Iterator[None]:
        """Records a phase for the duration of a block; the phase around it returns afterwards."""
        outer, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = outer

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
