"""Tests the leader's record of fusion rounds: arrivals, exits, repeated calls and forgotten outcomes."""

import pytest

from agentpod.fusion.reachability import LEADER
from agentpod.fusion.rounds import (
    Arrival,
    FusionOptions,
    FusionRounds,
    MemberId,
    Membership,
    RoundOutcome,
    RoundReport,
)
from podrace.errors import Aborted, FailedPrecondition

OPTIONS = FusionOptions(straggler_seconds=30.0, report_seconds=5.0)
A, B, C = (0, "a"), (1, "b"), (2, "c")
B2 = (1, "b2")
STEPS = 100


def arrival(member: MemberId, time: float = 0.0, *, applied_round: int = 4, epoch: int = 7) -> Arrival:
    index, incarnation = member
    return Arrival(index, incarnation, applied_round, epoch, STEPS * (1 + index), time)


class Meeting:
    """Runs rounds with learners that follow the protocol."""

    def __init__(self, learners: int = 3, options: FusionOptions = OPTIONS) -> None:
        self.rounds = FusionRounds(learners, options)
        self.applied: dict[MemberId, int] = {}
        self.epochs: dict[MemberId, int] = {}

    def arrive(self, *members: MemberId, now: float = 0.0) -> Membership | None:
        for member in members:
            applied, epoch = self.applied.get(member, 0), self.epochs.get(member, 0)
            self.rounds.arrive(arrival(member, now, applied_round=applied, epoch=epoch))
        self.rounds.advance(now)
        return self.rounds.membership(members[0])

    def report(
        self, *members: MemberId, digest: str = "same", failure: str = "", now: float = 1.0
    ) -> RoundOutcome | None:
        formed = self.rounds.state.formed
        assert formed
        for member in members:
            self.rounds.report(RoundReport(member, formed.epoch, formed.round, digest, failure, now))
        self.rounds.advance(now)
        outcome = self.rounds.outcome(formed.epoch, formed.round)
        if outcome:
            for member in members:
                self.epochs[member] = formed.epoch if outcome.committed else 0
                self.applied[member] = formed.round if outcome.committed else self.applied.get(member, 0)
        return outcome

    def commit(self, *members: MemberId, now: float = 0.0) -> Membership:
        membership = self.arrive(*members, now=now)
        assert membership
        outcome = self.report(*members, now=now)
        assert outcome
        assert outcome.committed, outcome.reason
        return membership


def test_unchanged_members_keep_their_group_and_join_once() -> None:
    meeting = Meeting()
    first, second, third = (meeting.commit(A, B, C, now=now) for now in (0.0, 10.0, 20.0))
    assert (first.round, first.epoch, first.joiners) == (1, 1, {1, 2})
    assert (second.round, second.epoch, second.joiners) == (2, 1, set())
    assert (third.round, third.epoch, third.joiners) == (3, 1, set())


def test_environment_steps_are_counted_once_and_only_in_committed_rounds() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    assert meeting.rounds.state.environment_steps == STEPS + 2 * STEPS
    meeting.arrive(A, B)
    aborted = meeting.report(A, B, failure="lost")
    assert aborted
    assert (aborted.committed, aborted.environment_steps) == (False, 3 * STEPS)
    meeting.commit(A, B)
    assert meeting.rounds.state.environment_steps == 6 * STEPS


def test_a_killed_member_aborts_the_round_and_the_others_repeat_it_without_that_member() -> None:
    meeting = Meeting()
    meeting.commit(A, B, C)
    meeting.arrive(A, B, C, now=10.0)
    assert meeting.report(A, B, failure="a member of the group was lost", now=11.0) is None
    meeting.rounds.advance(15.9)
    assert meeting.rounds.state.formed
    meeting.rounds.advance(16.0)
    assert not meeting.rounds.state.formed
    again = meeting.commit(A, B, now=16.0)
    assert (again.round, again.epoch, again.members, again.joiners) == (2, 2, (A, B), set())


def test_a_round_does_not_wait_for_a_process_that_has_exited() -> None:
    meeting = Meeting()
    meeting.commit(A, B, C)
    meeting.arrive(A, B, C, now=10.0)
    meeting.rounds.leave(C)
    outcome = meeting.report(A, B, failure="lost", now=11.0)
    assert outcome
    assert not outcome.committed
    assert meeting.commit(A, B, now=11.0).members == (A, B)
    meeting.rounds.leave(B)
    assert meeting.commit(A, now=12.0).members == (A,)


def test_a_process_that_exits_while_waiting_is_forgotten() -> None:
    meeting = Meeting()
    meeting.arrive(B, C)
    meeting.rounds.leave(C)
    membership = meeting.arrive(A)
    assert membership
    assert membership.members == (A, B)


def test_a_dropped_learner_joins_when_it_arrives() -> None:
    meeting = Meeting()
    meeting.commit(A, B, C)
    meeting.arrive(A, B, now=10.0)
    meeting.rounds.advance(40.0)
    meeting.report(A, B, now=40.0)
    assert meeting.rounds.state.expected == {0, 1}
    meeting.arrive(C, now=41.0)
    membership = meeting.arrive(A, B, now=50.0)
    assert membership
    assert (membership.members, membership.epoch, membership.joiners) == ((A, B, C), 3, {2})


def test_a_learner_that_arrives_during_a_round_takes_part_in_the_next() -> None:
    meeting = Meeting(2)
    meeting.arrive(A, B)
    assert meeting.arrive(C) is None
    meeting.report(A, B)
    assert meeting.arrive(A) is None
    membership = meeting.arrive(B)
    assert membership
    assert membership.members == (A, B, C)


def test_a_restarted_learner_aborts_the_round_of_its_previous_process_at_once() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    meeting.arrive(A, B)
    assert meeting.arrive(B2) is None
    outcome = meeting.report(A, failure="lost")
    assert outcome
    assert not outcome.committed
    membership = meeting.arrive(A)
    assert membership
    assert (membership.members, membership.joiners) == ((A, B2), {1})
    assert meeting.report(A) is None, "the new process is not gone"


def test_repeating_a_call_changes_nothing() -> None:
    meeting = Meeting(2)
    first = meeting.arrive(A, B)
    state = meeting.rounds.state
    assert meeting.arrive(A, now=5.0) == first
    assert meeting.rounds.state == state
    meeting.report(B)
    state = meeting.rounds.state
    meeting.rounds.report(RoundReport(B, 1, 1, "another", "", 2.0))
    assert meeting.rounds.state == state
    outcome = meeting.report(A)
    state = meeting.rounds.state
    meeting.rounds.report(RoundReport(B, 1, 1, "another", "", 2.0))
    assert meeting.rounds.state == state
    assert meeting.rounds.outcome(1, 1) == outcome
    meeting.arrive(B, now=10.0)
    meeting.arrive(B, now=20.0)
    assert meeting.rounds.state.arrived[1].time == 10.0


def test_a_report_on_a_round_without_the_reporter_is_refused() -> None:
    meeting = Meeting(2)
    meeting.arrive(A, B)
    for other, epoch, number in ((C, 1, 1), (B2, 1, 1), (B, 2, 1), (B, 1, 2)):
        with pytest.raises(Aborted, match="it must arrive again"):
            meeting.rounds.report(RoundReport(other, epoch, number, "same", "", 1.0))


def test_a_late_report_is_answered_with_the_aborted_outcome() -> None:
    meeting = Meeting(2)
    meeting.arrive(A, B)
    meeting.report(A, now=1.0)
    meeting.rounds.advance(6.0)
    meeting.rounds.report(RoundReport(B, 1, 1, "same", "", 7.0))
    outcome = meeting.rounds.outcome(1, 1)
    assert outcome
    assert not outcome.committed


def test_a_deviating_learner_takes_the_leaders_state_and_is_expelled_if_it_deviates_again() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    meeting.arrive(A, B)
    meeting.report(A)
    meeting.report(B, digest="other")
    membership = meeting.arrive(A, B)
    assert membership
    assert membership.joiners == {1}
    meeting.report(A)
    meeting.report(B, digest="other")
    with pytest.raises(FailedPrecondition, match="learner 1 computed another average than the leader"):
        meeting.arrive(B)
    assert meeting.commit(A).members == (A,)
    assert meeting.arrive(B2, now=10.0) is None


def test_an_aborted_round_ends_the_epoch() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    meeting.arrive(A, B)
    meeting.report(A)
    meeting.report(B, failure="no room")
    meeting.epochs = {A: 1, B: 1}
    membership = meeting.arrive(A, B)
    assert membership
    assert membership.epoch == 2


def test_old_outcomes_are_forgotten() -> None:
    meeting = Meeting(1)
    for _ in range(20):
        meeting.commit(A)
    assert meeting.rounds.outcome(1, 1) is None
    assert meeting.rounds.outcome(1, 20)


def test_ranks_follow_the_order_of_members_and_the_leader_has_rank_0() -> None:
    membership = Meeting().arrive(C, B, A)
    assert membership
    assert membership.members == (A, B, C)
    assert membership.members[0][0] == LEADER
