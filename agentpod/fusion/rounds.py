"""Decides which learners take part in a fusion round and whether the round is committed, without a clock or a tensor.

The order of events is the same for every learner, the leader included:

1. It *arrives* (`JoinFusion`) and waits until the round *forms*. That is when all expected learners have arrived, or
   when the leader has arrived and the first arrival has waited for as long as agentpod.fusion.pace says. Missing
   learners are dropped and may arrive for a later round.
2. If the *epoch* is new to it, it joins a new group under the round's prefix. If there are *joiners*, the leader sends
   its state and they take it.
3. All members compute the average without applying it, and *report* (`CommitFusion`) its digest, or what failed.
4. If all members report the same digest, the round is committed and all apply it. Otherwise it is aborted: all keep
   their state, and those that reported arrive again at once. A member that has not reported `report_seconds` after the
   first report is dropped. If rounds fail again and again, agentpod.fusion.reachability decides who takes part.

A learner repeats its report until it is answered or the leader has exited, because only the outcome shows whether its
samples and steps were counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentpod.fusion.pace import Pace, describe_late
from agentpod.fusion.reachability import LEADER, Reachability, describe_pauses
from podrace.errors import Aborted, FailedPrecondition, InvalidArgument

MODES = ("average", "allreduce", "diloco")
REMEMBERED_OUTCOMES = 16
"""Outcomes kept to answer repeated reports."""


@dataclass(frozen=True)
class FusionOptions:
    """How the learners of an agent are fused."""

    mode: str = "average"
    """One of MODES."""
    straggler_seconds: float = 30.0
    """How long the first learner to arrive waits for the others at least."""
    report_seconds: float = 5.0
    """How long the first member to report waits for the others; computing a digest must take less."""
    outer_learning_rate: float = 0.7
    """Learning rate of the outer step of `diloco`."""
    outer_momentum: float = 0.9
    """Momentum of the outer step of `diloco`."""

    def __post_init__(self) -> None:
        """Validates the options.

        Raises:
            InvalidArgument: A value is out of its range.
        """
        if self.mode not in MODES:
            raise InvalidArgument(f"fusion.mode = {self.mode!r} must be one of {', '.join(MODES)}")
        for name in ("straggler_seconds", "report_seconds", "outer_learning_rate"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidArgument(f"fusion.{name} = {getattr(self, name)} must be greater than 0")
        if not 0.0 <= self.outer_momentum < 1.0:
            raise InvalidArgument(f"fusion.outer_momentum = {self.outer_momentum} must be at least 0 and less than 1")


# --- state -----------------------------------------------------------------------------------------------------------

MemberId = tuple[int, str]
"""Index and incarnation of a learner."""


@dataclass(frozen=True)
class Arrival:
    """A learner that wants to take part in the next round."""

    index: int
    """Of the learner; LEADER is the leader's."""
    incarnation: str
    """Identifies its process."""
    applied_round: int
    """The last round that it applied; 0 = none."""
    epoch: int
    """Epoch of the group that it still holds; 0 = none."""
    environment_steps: int
    """Its own steps since the last round that it applied."""
    time: float
    """Time of arrival, in seconds."""

    @property
    def member(self) -> MemberId:
        """Identity of the learner process."""
        return self.index, self.incarnation


@dataclass(frozen=True)
class RoundReport:
    """The result of a round at one member."""

    member: MemberId
    epoch: int
    """Epoch of the round that it reports on."""
    round: int
    """Number of the round that it reports on."""
    digest: str
    """Digest of the average; meaningless after a failure."""
    failure: str
    """What failed; empty if nothing did."""
    time: float
    """Time of the report, in seconds."""


@dataclass(frozen=True)
class Membership:
    """The members of a round: the answer to `JoinFusion`."""

    round: int
    """Number of the round, from 1. The number of an aborted round is used again."""
    epoch: int
    """Epoch of the group; it increases with every change of members and with every aborted round."""
    members: tuple[MemberId, ...]
    """In rank order; the leader has rank 0."""
    joiners: frozenset[int]
    """Ranks that take the leader's state first."""
    reason: str
    """For the log."""
    missing: frozenset[int] = frozenset()
    """Indices of expected learners that did not arrive in time."""


@dataclass(frozen=True)
class RoundOutcome:
    """The end of a round: the answer to `CommitFusion`."""

    committed: bool
    """Whether the average is applied; if not, all state stays unchanged."""
    environment_steps: int
    """Of all learners, in all committed rounds."""
    reason: str
    """For the log."""


@dataclass(frozen=True)
class RoundState:
    """Everything that the decisions depend on; immutable."""

    expected: frozenset[int]
    """Indices of the learners that are waited for."""
    arrived: Mapping[int, Arrival] = field(default_factory=dict)
    """Arrivals for the next round, by index."""
    formed: Membership | None = None
    """The round in progress."""
    steps: Mapping[int, int] = field(default_factory=dict)
    """Environment steps that each of its members contributes, by index."""
    reported: Mapping[int, RoundReport] = field(default_factory=dict)
    """Reports of its members, by index."""
    lost: frozenset[int] = frozenset()
    """Indices of its members that have exited."""
    last_members: tuple[MemberId, ...] = ()
    """Members of the last round, in progress or not."""
    aborted: bool = False
    """Whether the last round was aborted."""
    deviating: frozenset[int] = frozenset()
    """Indices of its members whose digest differed from the leader's."""
    expelled: frozenset[MemberId] = frozenset()
    """Members whose digest differed even after they took the leader's state."""
    epoch: int = 0
    """Epoch of the last round."""
    committed_rounds: int = 0
    """Number of committed rounds."""
    environment_steps: int = 0
    """Of the committed rounds."""
    reachability: Reachability = field(default_factory=Reachability)
    """Which learners may take part."""
    pace: Pace = field(default_factory=Pace)
    """How long to wait for the others."""


# --- decisions -------------------------------------------------------------------------------------------------------


def decide_round(now: float, state: RoundState, options: FusionOptions) -> Membership | float:
    """Returns the members of the next round, or the time until which to wait for arrivals (infinity: no limit)."""
    if LEADER not in state.arrived:
        return math.inf
    reachability = state.reachability
    missing = reachability.awaited(now, state.expected) - state.arrived.keys()
    # The others may have arrived rounds ago.
    first = min(arrival.time for index, arrival in state.arrived.items() if reachability.is_proven(index))
    seconds = state.pace.after_begin(state.arrived[LEADER].time, ()).straggler_seconds(options.straggler_seconds)
    if missing and now < first + seconds:
        return first + seconds
    arrived = {index: state.arrived[index] for index in sorted(reachability.admitted(now, state.arrived))}
    members = tuple(arrival.member for arrival in arrived.values())
    kept = members == state.last_members and not state.aborted
    kept = kept and all(arrival.epoch == state.epoch for arrival in arrived.values())
    # In allreduce mode, when a group broke, some members have made the last step and others have not.
    torn = options.mode == "allreduce" and not kept
    joiners = frozenset(
        rank
        for rank, (index, _) in enumerate(members)
        if index != LEADER and (torn or index in state.deviating or not _up_to_date(arrived[index], state))
    )
    reason = f"without learners {_listed(missing)}, which did not arrive in time" if missing else "all arrived"
    left_out = frozenset(state.arrived) - arrived.keys()
    reason += f"; learners {_listed(left_out)} are left out because rounds failed" if left_out else ""
    return Membership(state.committed_rounds + 1, state.epoch + (not kept), members, joiners, reason, missing)


def _up_to_date(arrival: Arrival, state: RoundState) -> bool:
    """Whether the learner's state is the outcome of the last committed round plus its own updates since then."""
    return arrival.applied_round == state.committed_rounds > 0


def decide_outcome(now: float, formed: Membership, state: RoundState, options: FusionOptions) -> RoundOutcome | float:
    """Returns whether the round is committed, or the time until which to wait for reports (infinity: no limit)."""
    reported = state.reported
    silent = frozenset(index for index, _ in formed.members) - reported.keys()
    give_up_time = min((report.time for report in reported.values()), default=math.inf) + options.report_seconds
    if silent - state.lost and now < give_up_time:
        return give_up_time
    before = state.environment_steps
    if silent:
        return RoundOutcome(False, before, f"learner {_listed(silent)} did not report")
    failed = sorted(index for index, report in reported.items() if report.failure)
    if failed:
        return RoundOutcome(False, before, f"learner {failed[0]} failed: {reported[failed[0]].failure}")
    deviating = deviating_members(state)
    if deviating:
        return RoundOutcome(False, before, f"learner {_listed(deviating)} has another average than the leader")
    return RoundOutcome(True, before + sum(state.steps.values()), f"{len(reported)} learners agree")


def deviating_members(state: RoundState) -> frozenset[int]:
    """Returns the indices of the members whose digest differs from the leader's."""
    digests = {index: report.digest for index, report in state.reported.items() if not report.failure}
    return frozenset(index for index, digest in digests.items() if digest != digests.get(LEADER, digest))


def reachability_after(now: float, formed: Membership, state: RoundState, outcome: RoundOutcome) -> Reachability:
    """Returns which learners may take part after a round; one that failed because of a lost process shows nothing."""
    members = frozenset(index for index, _ in formed.members)
    if outcome.committed:
        return state.reachability.after_commit(members, state.arrived)
    if state.lost or deviating_members(state):
        return state.reachability
    succeeded = frozenset(index for index, report in state.reported.items() if not report.failure)
    return state.reachability.after_failure(now, members, succeeded, state.arrived, outcome.reason)


def _listed(indices: frozenset[int]) -> str:
    return ", ".join(str(index) for index in sorted(indices))


# --- record of arrivals and reports ----------------------------------------------------------------------------------


class FusionRounds:
    """Records arrivals and reports, and forms and ends rounds. It never blocks; its callers wait.

    JoinFusion:

        rounds.arrive(arrival)
        while (membership := rounds.membership(arrival.member)) is None:
            await changed_or_at(rounds.advance(time.monotonic()))

    CommitFusion:

        rounds.report(report)
        while (outcome := rounds.outcome(report.epoch, report.round)) is None:
            await changed_or_at(rounds.advance(time.monotonic()))

    When a learner's process exits, `leave` must be called, so that the others stop waiting for it.

    Attributes:
        state: The present state; immutable.
    """

    def __init__(self, learners: int, options: FusionOptions) -> None:
        """Expects all `learners` of an agent, including the leader."""
        self.state, self._options = RoundState(frozenset(range(learners))), options
        self._outcomes: dict[tuple[int, int], RoundOutcome] = {}
        self._warnings: list[str] = []

    def arrive(self, arrival: Arrival) -> None:
        """Records that a learner is ready for the next round; idempotent.

        Raises:
            FailedPrecondition: The process was expelled because it computes other averages than the leader.
            LeaderIsolated: This is the leader, and no other learner can be reached from it.
        """
        index, member = arrival.index, arrival.member
        if index == LEADER:
            self.state.reachability.check_leader()
        if member in self.state.expelled:
            raise FailedPrecondition(
                f"learner {index} computed another average than the leader, even from the leader's own state: check its"
                " machine and build, and restart it"
            )
        before = self.state.arrived.get(index)
        if self.membership(member) or (before and before.member == member):
            return
        for earlier in self.state.formed.members if self.state.formed else ():
            if earlier[0] == index:
                self.leave(earlier)
        self.state = replace(self.state, arrived={**self.state.arrived, index: arrival})

    def leave(self, member: MemberId) -> None:
        """Records that a process has exited; a new one with the same index may have arrived already."""
        state, index = self.state, member[0]
        arrived = {key: arrival for key, arrival in state.arrived.items() if arrival.member != member}
        expected = state.expected if index in arrived else state.expected - {index}
        lost = state.lost | {index} if self.membership(member) else state.lost
        self.state = replace(state, arrived=arrived, expected=expected, lost=lost)

    def report(self, report: RoundReport) -> None:
        """Records a member's report; idempotent.

        Raises:
            Aborted: The process is not a member of that round, or the round ended long ago.
        """
        if (report.epoch, report.round) in self._outcomes:
            return
        formed, index = self.membership(report.member), report.member[0]
        if formed is None or (formed.epoch, formed.round) != (report.epoch, report.round):
            raise Aborted(
                f"learner {index} is not a member of fusion round {report.round}, epoch {report.epoch}: "
                "it must arrive again"
            )
        self.state = replace(self.state, reported={index: report, **self.state.reported})

    def advance(self, now: float) -> float:
        """Makes all decisions that are due.

        Returns:
            When to call again if nothing changes before (infinity: not at all).
        """
        while True:
            state = self.state
            if state.formed is None:
                membership = decide_round(now, state, self._options)
                if not isinstance(membership, Membership):
                    return membership
                self._begin(membership)
            else:
                outcome = decide_outcome(now, state.formed, state, self._options)
                if not isinstance(outcome, RoundOutcome):
                    return outcome
                self._end(now, state.formed, outcome)

    def take_warnings(self) -> list[str]:
        """Returns what a person should know of the decisions since the last call, a line each."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def membership(self, member: MemberId) -> Membership | None:
        """Returns the round in progress if this process takes part in it."""
        formed = self.state.formed
        return formed if formed and member in formed.members else None

    def outcome(self, epoch: int, round_number: int) -> RoundOutcome | None:
        """Returns how a round ended; None if it has not ended."""
        return self._outcomes.get((epoch, round_number))

    def _begin(self, membership: Membership) -> None:
        before, members = self.state, frozenset(membership.members)
        pace = before.pace.after_begin(before.arrived[LEADER].time, membership.missing)
        limit_seconds = pace.straggler_seconds(self._options.straggler_seconds)
        self._warnings += describe_late(pace, membership.missing, limit_seconds)
        self.state = replace(
            before,
            arrived={index: arrival for index, arrival in before.arrived.items() if arrival.member not in members},
            formed=membership,
            steps={index: before.arrived[index].environment_steps for index, _ in membership.members},
            pace=pace,
            reported={},
            lost=frozenset(),
            last_members=membership.members,
            aborted=False,
            epoch=membership.epoch,
        )

    def _end(self, now: float, formed: Membership, outcome: RoundOutcome) -> None:
        state = self.state
        self._outcomes[formed.epoch, formed.round] = outcome
        for forgotten in list(self._outcomes)[:-REMEMBERED_OUTCOMES]:
            del self._outcomes[forgotten]
        deviating = deviating_members(state)
        # A member that kept its own state may have drifted; one that just took the leader's cannot have.
        expelled = {formed.members[rank] for rank in formed.joiners if formed.members[rank][0] in deviating}
        reachability = reachability_after(now, formed, state, outcome)
        self._warnings += describe_pauses(state.reachability, reachability)
        stay = (state.reported.keys() - {index for index, _ in expelled}) | state.arrived.keys()
        self.state = replace(
            state,
            expected=frozenset(stay),
            formed=None,
            aborted=not outcome.committed,
            deviating=deviating,
            expelled=state.expelled | expelled,
            committed_rounds=state.committed_rounds + outcome.committed,
            environment_steps=outcome.environment_steps,
            reachability=reachability,
            pace=state.pace.after_commit(now) if outcome.committed else state.pace,
        )
