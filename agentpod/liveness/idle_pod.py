"""Observes whether the roles of a pod wait for each other: none of them works, although the pod has an assignment."""

from collections import deque
from collections.abc import Callable, Mapping

from agentpod.liveness.deadlines import Observation, Verdict, judge
from agentpod.liveness.doublings import Doublings
from agentpod.liveness.role_watch import LONGEST_GAP_SECONDS, SAMPLES, RoleAnswer
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines


class IdlePod:
    """The time in which no role of a pod works.

    It counts from the last update, the last poll in which a role was not idle or did not answer, and the last change
    of a counter. During training its deadline is learned from the times between updates. Otherwise it is the longest.

        idle = IdlePod(options, progress.updates_in_training, now)
        idle.observe(now, answers)
        if idle.judge().stuck: ...
    """

    def __init__(self, options: ProgressDeadlines, updates: Callable[[], int | None], now: float) -> None:
        """Starts without history.

        Args:
            options: Bounds of the deadlines.
            updates: Returns the number of updates so far while the pod trains; None while it does not.
            now: Monotonic time in seconds.
        """
        self._options, self._updates = options, updates
        self._polled_at = self._time = self._updated_at = self._idle_since = now
        self._made: int | None = None
        self._intervals: deque[float] = deque(maxlen=SAMPLES)
        self._last: Mapping[str, RoleAnswer | None] = {}
        self._doublings = Doublings()

    def observe(self, now: float, answers: Mapping[str, RoleAnswer | None]) -> None:
        """Records the answers of all roles to a poll."""
        # As in RoleWatch: a watcher that was itself stopped has not seen what happened meanwhile.
        self._time += min(now - self._polled_at, LONGEST_GAP_SECONDS)
        self._polled_at = now
        made = self._updates()
        idle = all(answer and answer.phase == pb.ROLE_PHASE_IDLE for answer in answers.values())
        if not idle or answers != self._last or made != self._made:
            self._idle_since = self._time
            if self._doublings.count:
                self._doublings.ease(self._time, self.judge().deadline_seconds)
        if made != self._made:
            if made is not None and self._made is not None and made > self._made:
                self._intervals.append((self._time - self._updated_at) / (made - self._made))
            self._updated_at = self._time
        self._made, self._last = made, dict(answers)

    def judge(self) -> Verdict:
        """Decides whether the roles wait for each other, as of the last poll."""
        history = tuple(self._intervals) if self._made is not None else ()
        seen = Observation(
            pb.ROLE_PHASE_IDLE, self._idle_since, history, idle_pod=True, stuck_before=self._doublings.count
        )
        return judge(self._time, seen, self._options)

    def restart(self) -> None:
        """Records that the pod was found to be stuck."""
        self._doublings.add(self._time)
        self._idle_since = self._time

    def stamp(self, progress: pb.RoleProgress) -> None:
        """Writes the time without work and its deadline into the progress of a role."""
        progress.age_duration.FromNanoseconds(round((self._time - self._idle_since) * 1e9))
        progress.deadline_duration.FromNanoseconds(round(self.judge().deadline_seconds * 1e9))
