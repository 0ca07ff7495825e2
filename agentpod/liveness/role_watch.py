"""Observes the progress of one role over time and keeps the history from which its deadlines are learned."""

from collections import defaultdict, deque
from typing import NamedTuple

from agentpod.liveness.deadlines import LEARNED, UNJUDGED, Observation, Verdict, judge
from agentpod.liveness.doublings import Doublings
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

LONGEST_GAP_SECONDS = 5.0
"""Time between two polls that counts at most. A watcher that was itself stopped for a minute saw nothing meanwhile."""
SAMPLES = 512


class RoleAnswer(NamedTuple):
    """The answer of a role to a poll."""

    phase: pb.RolePhase.ValueType
    counter: int


class RoleWatch:
    """The observed progress of one role.

    watch = RoleWatch("worker-0", options, now)
    watch.observe(now, answer, stopped=False)
    if watch.judge().stuck: ...
    """

    def __init__(self, role: str, options: ProgressDeadlines, now: float) -> None:
        self.role = role
        self._options = options
        self._polled_at = self._time = self._progressed_at = now
        self._history: defaultdict[pb.RolePhase.ValueType, deque[float]] = defaultdict(lambda: deque(maxlen=SAMPLES))
        self._last = RoleAnswer(pb.ROLE_PHASE_UNSPECIFIED, 0)
        self._answers, self._stopped, self._doublings = True, False, Doublings()

    def observe(self, now: float, answer: RoleAnswer | None, *, stopped: bool) -> None:
        """Records the answer to a poll; None if there was none."""
        # Time that passes on the watch's own clock, on which long gaps between polls are short.
        self._time += min(now - self._polled_at, LONGEST_GAP_SECONDS)
        self._polled_at = now
        self._answers, self._stopped = answer is not None, stopped
        if answer and (answer != self._last or answer.phase in UNJUDGED):
            if self._last.phase in LEARNED:
                self._past.append(self._time - self._progressed_at)
            self._progressed_at, self._last = self._time, answer
            if self._doublings.count:
                self._doublings.ease(self._time, self.judge().deadline_seconds)

    def judge(self) -> Verdict:
        """Decides whether the role is stuck, as of the last poll."""
        seen = Observation(
            self._last.phase,
            self._progressed_at,
            tuple(self._past),
            answers=self._answers,
            stopped=self._stopped,
            stuck_before=self._doublings.count,
        )
        return judge(self._time, seen, self._options)

    @property
    def _past(self) -> deque[float]:
        """Times between the earlier progress in the present phase."""
        phase = self._last.phase
        return self._history[pb.ROLE_PHASE_IDLE if phase in UNJUDGED else phase]

    @property
    def answers(self) -> bool:
        """Whether the role answered the last poll, and was not restarted since."""
        return self._answers and self._last.phase != pb.ROLE_PHASE_UNSPECIFIED

    @property
    def counter(self) -> int:
        """Counter that the role reported last."""
        return self._last.counter

    def restart(self, *, stuck: bool = True) -> None:
        """Records that the role has a new process, because it was stuck or, without `stuck`, for another reason."""
        if stuck and self._answers and not self._stopped:
            self._doublings.add(self._time)
        self._progressed_at, self._last = self._time, RoleAnswer(pb.ROLE_PHASE_UNSPECIFIED, 0)

    def message(self) -> pb.RoleProgress:
        """Returns the progress as a message, with its age and the deadline."""
        message = pb.RoleProgress(role=self.role, phase=self._last.phase, counter=self._last.counter)
        message.age_duration.FromNanoseconds(round((self._time - self._progressed_at) * 1e9))
        message.deadline_duration.FromNanoseconds(round(self.judge().deadline_seconds * 1e9))
        return message
