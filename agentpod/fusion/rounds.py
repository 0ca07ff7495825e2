"""Decides who takes part in a fusion round and whether it counts: the head's memory, without a clock or a tensor.

The order of events, for every learner and the head alike:

1. It *arrives* (`JoinFusion`) and waits until the round *forms*: all who are expected have arrived, or the head has and
   the first who did has waited `straggler_seconds`. Whoever is missing is dropped, and may arrive for a later round.
2. If the *epoch* is new to it, it joins a new group under the formation's prefix; if there are *joiners*, the head
   sends its state and they take it.
3. All compute the average aside and *report* (`CommitFusion`) its digest, or what went wrong.
4. If every member reports the same digest, the round is committed and all apply it. Otherwise it is aborted: all keep
   what they have, and those who reported arrive again at once. Whoever has not reported `report_seconds` after the
   first who did is dropped.

A learner repeats its report until it is answered, or until the head is dead and everything with it: only the outcome
tells it whether its samples and steps have been counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from podrace.errors import Aborted, FailedPrecondition, InvalidArgument

MODES = ("average", "allreduce", "diloco")
LEADER = 0
"""Index of the head among the learners."""
REMEMBERED_OUTCOMES = 16


@dataclass(frozen=True)
class FusionOptions:
    """How the learners of an agent are fused."""

    mode: str = "average"
    """Key of MODES."""
    straggler_seconds: float = 30.0
    """How long the first who arrives waits for the others."""
    report_seconds: float = 5.0
    """How long the first who reports waits for the others; more than a digest takes."""
    outer_learning_rate: float = 0.7
    """Of the outer step of `diloco`."""
    outer_momentum: float = 0.9
    """Of the outer step of `diloco`."""

    def __post_init__(self) -> None:
        """Refuses what cannot work.

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


# --- what is known ---------------------------------------------------------------------------------------------------

MemberId = tuple[int, str]
"""Index and incarnation of a learner."""


@dataclass(frozen=True)
class Arrival:
    """A learner that wants to take part in the next round."""

    index: int
    """Of the learner; HEAD is the head's."""
    incarnation: str
    """Of its process."""
    applied_round: int
    """The last round it applied; 0 = none."""
    epoch: int
    """Of the group it still holds; 0 = none."""
    environment_steps: int
    """Its own since the last round it applied."""
    time: float
    """When it arrived."""

    @property
    def member(self) -> MemberId:
        """Who it is."""
        return self.index, self.incarnation


@dataclass(frozen=True)
class RoundReport:
    """How a member fared in a round."""

    member: MemberId
    epoch: int
    """Of the formation it reports on."""
    round: int
    """Of the formation it reports on."""
    digest: str
    """Of the average; of no meaning if there is a failure."""
    failure: str
    """What went wrong; empty if nothing did."""
    time: float
    """When it reported."""


@dataclass(frozen=True)
class Membership:
    """The members of a round: what `JoinFusion` answers."""

    round: int
    """Its number, from 1; that of an aborted round is used again."""
    epoch: int
    """Of the group: it grows with every change of members and with every abort."""
    members: tuple[MemberId, ...]
    """In the order of the ranks; the head is rank 0."""
    joiners: frozenset[int]
    """Ranks that take the head's state first."""
    reason: str
    """For the log."""


@dataclass(frozen=True)
class RoundOutcome:
    """The end of a round: what `CommitFusion` answers."""

    committed: bool
    """Whether the average is to be applied; if not, everything stays as it is."""
    environment_steps: int
    """Of all learners, in all committed rounds."""
    reason: str
    """For the log."""


@dataclass(frozen=True)
class RoundState:
    """What the head knows."""

    expected: frozenset[int]
    """Learners that are waited for."""
    arrived: Mapping[int, Arrival] = field(default_factory=dict)
    """For the next round, by index."""
    formed: Membership | None = None
    """The round under way."""
    steps: Mapping[int, int] = field(default_factory=dict)
    """Environment steps that each of its members brings, by index."""
    reported: Mapping[int, RoundReport] = field(default_factory=dict)
    """How its members fared, by index."""
    lost: frozenset[int] = frozenset()
    """Its members that are known to be gone."""
    last_members: tuple[MemberId, ...] = ()
    """Of the last round, under way or not."""
    aborted: bool = False
    """Whether that was aborted."""
    deviating: frozenset[int] = frozenset()
    """Its members that had another digest than the head."""
    expelled: frozenset[MemberId] = frozenset()
    """Those that had one even after they took the head's state."""
    epoch: int = 0
    """Of the last round."""
    committed_rounds: int = 0
    """How many."""
    environment_steps: int = 0
    """Of the committed rounds."""


# --- decisions -------------------------------------------------------------------------------------------------------


def decide_round(now: float, state: RoundState, options: FusionOptions) -> Membership | float:
    """Who takes part in the next round; or until when to wait for an arrival (infinity: there is no hurry)."""
    arrived = state.arrived
    if LEADER not in arrived:
        return math.inf
    missing = state.expected - arrived.keys()
    give_up_time = min(arrival.time for arrival in arrived.values()) + options.straggler_seconds
    if missing and now < give_up_time:
        return give_up_time
    members = tuple(arrived[index].member for index in sorted(arrived))
    kept = members == state.last_members and not state.aborted
    kept = kept and all(arrival.epoch == state.epoch for arrival in arrived.values())
    # Where gradients are shared and a group broke, some have made the last step and others not.
    torn = options.mode == "allreduce" and not kept
    joiners = frozenset(
        rank
        for rank, (index, _) in enumerate(members)
        if index != LEADER and (torn or index in state.deviating or not _up_to_date(arrived[index], state))
    )
    reason = f"without {_listed(missing)}, who did not arrive in time" if missing else "all arrived"
    return Membership(state.committed_rounds + 1, state.epoch + (not kept), members, joiners, reason)


def _up_to_date(arrival: Arrival, state: RoundState) -> bool:
    """Whether its state is the outcome of the last committed round and what it learned since."""
    return arrival.applied_round == state.committed_rounds > 0


def decide_outcome(now: float, formed: Membership, state: RoundState, options: FusionOptions) -> RoundOutcome | float:
    """Whether a round counts; or until when to wait for a report (infinity: there is no hurry)."""
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
        return RoundOutcome(False, before, f"learner {_listed(deviating)} has another average than the head")
    return RoundOutcome(True, before + sum(state.steps.values()), f"{len(reported)} learners agree")


def deviating_members(state: RoundState) -> frozenset[int]:
    """Indices of those whose digest is another than the head's."""
    digests = {index: report.digest for index, report in state.reported.items() if not report.failure}
    return frozenset(index for index, digest in digests.items() if digest != digests.get(LEADER, digest))


def _listed(indices: frozenset[int]) -> str:
    return ", ".join(str(index) for index in sorted(indices))


# --- memory ----------------------------------------------------------------------------------------------------------


class FusionRounds:
    """The head's record of arrivals and reports. It waits for nobody: servicers do, and ask it.

    JoinFusion:

        rounds.arrive(arrival)
        while (formation := rounds.formation(arrival.member)) is None:
            await changed_or_at(rounds.advance(time.monotonic()))

    CommitFusion:

        rounds.report(report)
        while (outcome := rounds.outcome(report.epoch, report.round)) is None:
            await changed_or_at(rounds.advance(time.monotonic()))

    Whoever sees the end of a learner's process calls `leave`, so that nobody waits for it.

    Attributes:
        state: What is known; immutable.
    """

    def __init__(self, learners: int, options: FusionOptions) -> None:
        """Expects all learners of an agent, the head among them."""
        self.state = RoundState(frozenset(range(learners)))
        self._options = options
        self._outcomes: dict[tuple[int, int], RoundOutcome] = {}

    def arrive(self, arrival: Arrival) -> None:
        """Notes that a learner is ready for the next round; repeating is harmless.

        Raises:
            FailedPrecondition: This process computes other averages than the head.
        """
        index, member = arrival.index, arrival.member
        if member in self.state.expelled:
            raise FailedPrecondition(
                f"learner {index} computed another average than the head, even from the head's own state: look at its"
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
        """Notes that a process is gone; another one of the same index may be there already."""
        state, index = self.state, member[0]
        arrived = {key: arrival for key, arrival in state.arrived.items() if arrival.member != member}
        expected = state.expected if index in arrived else state.expected - {index}
        lost = state.lost | {index} if self.membership(member) else state.lost
        self.state = replace(state, arrived=arrived, expected=expected, lost=lost)

    def report(self, report: RoundReport) -> None:
        """Notes how a member fared; repeating is harmless.

        Raises:
            Aborted: This process is no member of that round, or the round is long over.
        """
        if (report.epoch, report.round) in self._outcomes:
            return
        formed, index = self.membership(report.member), report.member[0]
        if formed is None or (formed.epoch, formed.round) != (report.epoch, report.round):
            raise Aborted(
                f"learner {index} is no member of fusion round {report.round}, epoch {report.epoch}: it has to arrive"
            )
        self.state = replace(self.state, reported={index: report, **self.state.reported})

    def advance(self, now: float) -> float:
        """Decides what is due; returns when to look again if nothing happens before (infinity: not at all)."""
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
                self._end(state.formed, outcome)

    def membership(self, member: MemberId) -> Membership | None:
        """The round under way, if this process takes part in it."""
        formed = self.state.formed
        return formed if formed and member in formed.members else None

    def outcome(self, epoch: int, round_number: int) -> RoundOutcome | None:
        """How a round ended; None while it has not."""
        return self._outcomes.get((epoch, round_number))

    def _begin(self, membership: Membership) -> None:
        arrived = self.state.arrived
        self.state = replace(
            self.state,
            arrived={},
            formed=membership,
            steps={index: arrival.environment_steps for index, arrival in arrived.items()},
            reported={},
            lost=frozenset(),
            last_members=membership.members,
            aborted=False,
            epoch=membership.epoch,
        )

    def _end(self, formed: Membership, outcome: RoundOutcome) -> None:
        state = self.state
        self._outcomes[formed.epoch, formed.round] = outcome
        for forgotten in list(self._outcomes)[:-REMEMBERED_OUTCOMES]:
            del self._outcomes[forgotten]
        deviating = deviating_members(state)
        # Its own state may have drifted; the head's cannot have.
        expelled = {formed.members[rank] for rank in formed.joiners if formed.members[rank][0] in deviating}
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
        )
