"""Decides which learners fusion rounds leave out because rounds with them fail, without a clock or a tensor.

If one member cannot be reached, the collective fails on all members, so the reports do not show which of them it is.
After MOST_FAILURES failed rounds in a row, rounds therefore have only members that are *proven*, and others on *trial*:

1. The leader is proven, and so are members whose collectives succeeded in the last of these rounds.
2. Each round tries `trials` others. If it is committed, they are proven, and the next one tries twice as many.
3. If it fails, the next one tries one. If that one fails, it is *paused*: it is tried again after a minute, and after
   twice as long each time up to an hour.
4. If rounds of proven members alone fail, only the leader remains proven. A round of the leader alone needs no network.
5. If the leader has been tried with each of several others and always failed, it is *isolated*: it cannot take part
   itself.

So at most MOST_FAILURES rounds, and a few for each learner that cannot be reached, fail before one is committed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from podrace.errors import FailedPrecondition

LEADER = 0
"""Index of the leader among the learners."""
ALONE = frozenset({LEADER})
MOST_FAILURES = 3
"""Failed rounds in a row after which learners are left out."""
FIRST_PAUSE_SECONDS = 60.0
"""How long a learner is left out at first."""
LONGEST_PAUSE_SECONDS = 3600.0
"""How long a learner is left out at most, until it is tried again."""
ADVICE = (
    "check that the hosts of the learners reach each other on all TCP ports, that `host` of each pod is the address of"
    " the interface between them (gloo), and with GPUs that NCCL_SOCKET_IFNAME names this interface"
)


class LeaderIsolated(FailedPrecondition):
    """The leader cannot take part in collectives with any other learner."""


@dataclass(frozen=True)
class Pause:
    """A learner that is left out."""

    failures: int
    """How many rounds failed because of it."""
    until: float
    """When it is tried again, in seconds."""

    @property
    def seconds(self) -> float:
        """How long it is left out after the last failure."""
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures - 1, 32))


@dataclass(frozen=True)
class Reachability:
    """What the last rounds showed about the learners; immutable."""

    failures: int = 0
    """Rounds in a row that failed."""
    proven: frozenset[int] | None = None
    """Learners that can reach each other; None: nothing suggests that some cannot."""
    trials: int = 1
    """How many others the next round tries."""
    paused: Mapping[int, Pause] = field(default_factory=dict)
    """Learners that are left out, by index."""
    isolated: bool = False
    """Whether the leader cannot take part itself."""
    reason: str = ""
    """Why the last round failed."""

    def admitted(self, now: float, arrived: Collection[int]) -> frozenset[int]:
        """Returns which of the learners that have arrived may take part in a round."""
        if self.proven is None:
            return frozenset(arrived)
        others = [index for index in arrived if index not in self.proven and not self._is_paused(index, now)]
        others.sort(key=lambda index: (self._failures_of(index), index))
        return self.proven.intersection(arrived) | frozenset(others[: self.trials])

    def awaited(self, now: float, expected: Collection[int]) -> frozenset[int]:
        """Returns which of the expected learners a round waits for: all but those that are left out."""
        return frozenset(index for index in expected if not self._is_paused(index, now))

    def is_proven(self, index: int) -> bool:
        """Returns whether nothing suggests that a learner cannot be reached."""
        return self.proven is None or index in self.proven

    def after_commit(self, members: frozenset[int], waiting: Collection[int]) -> "Reachability":
        """Returns the state after a round was committed.

        Args:
            members: Of the round.
            waiting: Learners that have arrived for the next one.
        """
        if self.proven is None:
            return Reachability()
        proven = self.proven | members
        paused = {index: pause for index, pause in self.paused.items() if index not in members}
        if not paused and proven.issuperset(waiting):
            return Reachability()
        trials = self.trials if members <= self.proven else 2 * self.trials
        return replace(self, failures=0, proven=proven, trials=trials, paused=paused)

    def after_failure(
        self, now: float, members: frozenset[int], succeeded: frozenset[int], waiting: Collection[int], reason: str
    ) -> "Reachability":
        """Returns the state after a round failed although no member exited.

        Args:
            now: Time in seconds.
            members: Of the round.
            succeeded: Those whose collectives succeeded.
            waiting: Learners that have arrived for the next one.
            reason: Why it failed.
        """
        state = replace(self, failures=self.failures + 1, reason=reason, isolated=members == ALONE)
        if self.proven is not None and (tried := members - self.proven):
            return state._after_trial(now, tried, members.union(waiting) - ALONE)
        if state.failures < MOST_FAILURES:
            return state
        proven = ALONE if self.proven is not None else succeeded | ALONE
        return replace(state, proven=proven, trials=1)

    def _after_trial(self, now: float, tried: frozenset[int], followers: frozenset[int]) -> "Reachability":
        if len(tried) > 1:
            return replace(self, trials=1)
        (index,) = tried
        pause = Pause(self._failures_of(index) + 1, now)
        paused = {**self.paused, index: replace(pause, until=now + pause.seconds)}
        isolated = self.proven == ALONE and len(paused) > 1 and followers <= paused.keys()
        return replace(self, trials=1, paused=paused, isolated=isolated)

    def _is_paused(self, index: int, now: float) -> bool:
        return index in self.paused and now < self.paused[index].until

    def _failures_of(self, index: int) -> int:
        return self.paused[index].failures if index in self.paused else 0

    def check_leader(self) -> None:
        """Checks that the leader can take part.

        Raises:
            LeaderIsolated: It cannot.
        """
        if self.isolated:
            raise LeaderIsolated(f"the leader can take part in no fusion round with a follower; {self.explained}")

    @property
    def explained(self) -> str:
        """Why the last round failed, and what to do, in one line."""
        return f"{ADVICE} (last failure: {self.reason})"


def describe_pauses(before: Reachability, after: Reachability) -> list[str]:
    """Returns a line for each learner that is left out from now on."""
    return [
        f"learner {index} is left out of fusion rounds for {pause.seconds:.0f} s because rounds with it fail;"
        f" {after.explained}"
        for index, pause in sorted(after.paused.items())
        if pause != before.paused.get(index)
    ]
