"""Laws of who takes part in a fusion round, and of which rounds count."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentpod.fusion_rounds import (
    HEAD,
    Arrival,
    Formation,
    FusionOptions,
    FusionRounds,
    Member,
    Outcome,
    Report,
    State,
    decide_outcome,
    decide_round,
)
from podrace.errors import Aborted, FailedPrecondition, InvalidArgument

OPTIONS = FusionOptions(straggler_seconds=30.0, report_seconds=5.0)
ALLREDUCE = replace(OPTIONS, mode="allreduce")
A, B, C = (0, "a"), (1, "b"), (2, "c")
B2 = (1, "b2")
STEPS = 100


def arrival(member: Member, time: float = 0.0, *, applied_round: int = 4, epoch: int = 7) -> Arrival:
    index, incarnation = member
    return Arrival(index, incarnation, applied_round, epoch, STEPS * (1 + index), time)


def arrived(*arrivals: Arrival) -> dict[int, Arrival]:
    return {item.index: item for item in arrivals}


SETTLED = State(frozenset({0, 1, 2}), last_members=(A, B, C), epoch=7, committed_rounds=4, environment_steps=10_000)
"""After four rounds, between two."""
ALL = arrived(arrival(A, 10.0), arrival(B, 11.0), arrival(C, 12.0))


@dataclass(frozen=True)
class Case:
    """Who has arrived, and what follows: members, epoch and joiners of a round, or until when to wait."""

    name: str
    state: State
    now: float = 12.0
    options: FusionOptions = OPTIONS
    members: tuple[Member, ...] = ()
    epoch: int = 0
    joiners: set[int] = field(default_factory=set)
    wait: float | None = None


CASES = [
    Case("nobody is there", SETTLED, wait=math.inf),
    Case(
        "without the head nothing is decided",
        replace(SETTLED, arrived=arrived(arrival(B), arrival(C))),
        1e9,
        wait=math.inf,
    ),
    Case("the head waits for the others", replace(SETTLED, arrived=arrived(arrival(A, 10.0))), wait=40.0),
    Case(
        "the first who arrived sets the time",
        replace(SETTLED, arrived=arrived(arrival(A, 20.0), arrival(B, 10.0))),
        39.9,
        wait=40.0,
    ),
    Case("all are there", replace(SETTLED, arrived=ALL), members=(A, B, C), epoch=7),
    Case(
        "stragglers are dropped",
        replace(SETTLED, arrived=arrived(arrival(A, 10.0), arrival(C, 10.0))),
        40.0,
        members=(A, C),
        epoch=8,
    ),
    Case(
        "a late head waits no longer",
        replace(SETTLED, arrived=arrived(arrival(A, 50.0), arrival(B, 10.0))),
        50.0,
        members=(A, B),
        epoch=8,
    ),
    Case(
        "the head goes on alone",
        replace(SETTLED, arrived=arrived(arrival(A, 10.0)), expected=frozenset({0})),
        members=(A,),
        epoch=8,
    ),
    Case(
        "who is not expected is not waited for",
        replace(SETTLED, arrived=arrived(arrival(A), arrival(B)), expected=frozenset({0, 1})),
        members=(A, B),
        epoch=8,
    ),
    Case(
        "a restarted learner joins, in a new epoch",
        replace(SETTLED, arrived=arrived(arrival(A), arrival(B2, applied_round=0, epoch=0), arrival(C))),
        members=(A, B2, C),
        epoch=8,
        joiners={1},
    ),
    Case(
        "a learner that missed a round joins",
        replace(
            SETTLED, last_members=(A, C), arrived=arrived(arrival(A), arrival(B, applied_round=3, epoch=6), arrival(C))
        ),
        members=(A, B, C),
        epoch=8,
        joiners={1},
    ),
    Case(
        "a learner that lost its group brings what it learned to a new one",
        replace(SETTLED, arrived=arrived(arrival(A), arrival(B, epoch=0), arrival(C))),
        members=(A, B, C),
        epoch=8,
    ),
    Case(
        "where gradients are shared it may have missed a step: all follow the head",
        replace(SETTLED, arrived=arrived(arrival(A), arrival(B, epoch=0), arrival(C))),
        options=ALLREDUCE,
        members=(A, B, C),
        epoch=8,
        joiners={1, 2},
    ),
    Case(
        "where gradients are shared and nobody was lost, nobody joins",
        replace(SETTLED, arrived=ALL),
        options=ALLREDUCE,
        members=(A, B, C),
        epoch=7,
    ),
    Case(
        "after an abort the same members form a new epoch, with what they have",
        replace(SETTLED, arrived=ALL, aborted=True),
        members=(A, B, C),
        epoch=8,
    ),
    Case(
        "who had another average follows the head",
        replace(SETTLED, arrived=ALL, aborted=True, deviating=frozenset({2})),
        members=(A, B, C),
        epoch=8,
        joiners={2},
    ),
    Case(
        "in the first round all follow the head",
        State(
            frozenset({0, 1}),
            arrived=arrived(arrival(A, applied_round=0, epoch=0), arrival(B, applied_round=0, epoch=0)),
        ),
        members=(A, B),
        epoch=1,
        joiners={1},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rounds_are_formed(case: Case) -> None:
    decision = decide_round(case.now, case.state, case.options)
    if case.wait is not None:
        assert decision == case.wait
        return
    assert isinstance(decision, Formation)
    assert (decision.members, decision.epoch, set(decision.joiners)) == (case.members, case.epoch, case.joiners)
    assert decision.round == case.state.committed_rounds + 1


FORMED = Formation(5, 7, (A, B, C), frozenset(), "all arrived")


def report(member: Member, digest: str = "same", failure: str = "", time: float = 20.0, **changes: Any) -> Report:
    return replace(Report(member, 7, 5, digest, failure, time), **changes)


def running(*reports: Report, lost: tuple[int, ...] = ()) -> State:
    return replace(
        SETTLED,
        formed=FORMED,
        steps={0: 100, 1: 200, 2: 300},
        reported={item.member[0]: item for item in reports},
        lost=frozenset(lost),
    )


@pytest.mark.parametrize(
    ("state", "now", "expected"),
    [
        pytest.param(running(), 1e9, math.inf, id="nobody has reported"),
        pytest.param(running(report(A), report(B)), 24.9, 25.0, id="one is waited for"),
        pytest.param(
            running(report(A), report(B), report(C)), 20.0, (True, 10_600, "3 learners agree"), id="all agree"
        ),
        pytest.param(running(report(A), report(B)), 25.0, (False, 10_000, "learner 2 did not report"), id="silent"),
        pytest.param(
            running(report(A), lost=(1, 2)), 20.0, (False, 10_000, "learner 1, 2 did not report"), id="gone: no waiting"
        ),
        pytest.param(
            running(report(A), report(B, failure="lost"), report(C)),
            20.0,
            (False, 10_000, "learner 1 failed: lost"),
            id="failed",
        ),
        pytest.param(
            running(report(B, failure="lost")),
            20.0,
            25.0,
            id="a failure waits for the others, who may be about to report",
        ),
        pytest.param(
            running(report(A), report(B, "other"), report(C)),
            20.0,
            (False, 10_000, "learner 1 has another average than the head"),
            id="one deviates",
        ),
        pytest.param(
            running(report(A, "other"), report(B), report(C)),
            20.0,
            (False, 10_000, "learner 1, 2 has another average than the head"),
            id="the head is right",
        ),
    ],
)
def test_a_round_counts_only_if_every_member_has_the_same_average(
    state: State, now: float, expected: float | tuple[bool, int, str]
) -> None:
    decision = decide_outcome(now, FORMED, state, OPTIONS)
    assert decision == (Outcome(*expected) if isinstance(expected, tuple) else expected)


# --- the memory ------------------------------------------------------------------------------------------------------


class Meeting:
    """Rounds, and learners that do what they should."""

    def __init__(self, learners: int = 3, options: FusionOptions = OPTIONS) -> None:
        self.rounds = FusionRounds(learners, options)
        self.applied: dict[Member, int] = {}
        self.epochs: dict[Member, int] = {}

    def arrive(self, *members: Member, now: float = 0.0) -> Formation | None:
        for member in members:
            applied, epoch = self.applied.get(member, 0), self.epochs.get(member, 0)
            self.rounds.arrive(arrival(member, now, applied_round=applied, epoch=epoch))
        self.rounds.advance(now)
        return self.rounds.formation(members[0])

    def report(self, *members: Member, digest: str = "same", failure: str = "", now: float = 1.0) -> Outcome | None:
        formed = self.rounds.state.formed
        assert formed
        for member in members:
            self.rounds.report(Report(member, formed.epoch, formed.round, digest, failure, now))
        self.rounds.advance(now)
        outcome = self.rounds.outcome(formed.epoch, formed.round)
        if outcome:
            for member in members:
                self.epochs[member] = formed.epoch if outcome.committed else 0
                self.applied[member] = formed.round if outcome.committed else self.applied.get(member, 0)
        return outcome

    def commit(self, *members: Member, now: float = 0.0) -> Formation:
        formation = self.arrive(*members, now=now)
        assert formation
        outcome = self.report(*members, now=now)
        assert outcome
        assert outcome.committed, outcome.reason
        return formation


def test_the_same_members_keep_their_group_and_nobody_joins_twice() -> None:
    meeting = Meeting()
    first, second, third = (meeting.commit(A, B, C, now=now) for now in (0.0, 10.0, 20.0))
    assert (first.round, first.epoch, first.joiners) == (1, 1, {1, 2})
    assert (second.round, second.epoch, second.joiners) == (2, 1, set())
    assert (third.round, third.epoch, third.joiners) == (3, 1, set())


def test_environment_steps_are_counted_once_in_committed_rounds_alone() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    assert meeting.rounds.state.environment_steps == STEPS + 2 * STEPS
    meeting.arrive(A, B)
    aborted = meeting.report(A, B, failure="lost")
    assert aborted
    assert (aborted.committed, aborted.environment_steps) == (False, 3 * STEPS)
    meeting.commit(A, B)
    assert meeting.rounds.state.environment_steps == 6 * STEPS


def test_a_killed_member_aborts_the_round_and_the_others_try_again_without_it() -> None:
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


def test_nobody_waits_for_a_process_that_is_proven_dead() -> None:
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


def test_a_process_that_dies_while_it_waits_is_forgotten() -> None:
    meeting = Meeting()
    meeting.arrive(B, C)
    meeting.rounds.leave(C)
    formation = meeting.arrive(A)
    assert formation
    assert formation.members == (A, B)


def test_a_dropped_learner_joins_when_it_arrives() -> None:
    meeting = Meeting()
    meeting.commit(A, B, C)
    meeting.arrive(A, B, now=10.0)
    meeting.rounds.advance(40.0)
    meeting.report(A, B, now=40.0)
    assert meeting.rounds.state.expected == {0, 1}
    meeting.arrive(C, now=41.0)
    formation = meeting.arrive(A, B, now=50.0)
    assert formation
    assert (formation.members, formation.epoch, formation.joiners) == ((A, B, C), 3, {2})


def test_a_learner_that_arrives_while_a_round_is_under_way_takes_part_in_the_next() -> None:
    meeting = Meeting(2)
    meeting.arrive(A, B)
    assert meeting.arrive(C) is None
    meeting.report(A, B)
    assert meeting.arrive(A) is None
    formation = meeting.arrive(B)
    assert formation
    assert formation.members == (A, B, C)


def test_a_restarted_learner_ends_the_round_of_its_former_process_at_once() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    meeting.arrive(A, B)
    assert meeting.arrive(B2) is None
    outcome = meeting.report(A, failure="lost")
    assert outcome
    assert not outcome.committed
    formation = meeting.arrive(A)
    assert formation
    assert (formation.members, formation.joiners) == ((A, B2), {1})
    assert meeting.report(A) is None, "the new process is not gone"


def test_repeating_a_call_changes_nothing() -> None:
    meeting = Meeting(2)
    first = meeting.arrive(A, B)
    state = meeting.rounds.state
    assert meeting.arrive(A, now=5.0) == first
    assert meeting.rounds.state == state
    meeting.report(B)
    state = meeting.rounds.state
    meeting.rounds.report(Report(B, 1, 1, "another", "", 2.0))
    assert meeting.rounds.state == state
    outcome = meeting.report(A)
    state = meeting.rounds.state
    meeting.rounds.report(Report(B, 1, 1, "another", "", 2.0))
    assert meeting.rounds.state == state
    assert meeting.rounds.outcome(1, 1) == outcome
    meeting.arrive(B, now=10.0)
    meeting.arrive(B, now=20.0)
    assert meeting.rounds.state.arrived[1].time == 10.0


def test_a_report_on_a_round_of_others_is_refused() -> None:
    meeting = Meeting(2)
    meeting.arrive(A, B)
    for stranger, epoch, number in ((C, 1, 1), (B2, 1, 1), (B, 2, 1), (B, 1, 2)):
        with pytest.raises(Aborted, match="it has to arrive"):
            meeting.rounds.report(Report(stranger, epoch, number, "same", "", 1.0))


def test_who_was_too_late_to_report_learns_that_the_round_was_aborted() -> None:
    meeting = Meeting(2)
    meeting.arrive(A, B)
    meeting.report(A, now=1.0)
    meeting.rounds.advance(6.0)
    meeting.rounds.report(Report(B, 1, 1, "same", "", 7.0))
    outcome = meeting.rounds.outcome(1, 1)
    assert outcome
    assert not outcome.committed


def test_a_learner_that_deviates_follows_the_head_and_is_expelled_if_it_deviates_again() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    meeting.arrive(A, B)
    meeting.report(A)
    meeting.report(B, digest="other")
    formation = meeting.arrive(A, B)
    assert formation
    assert formation.joiners == {1}
    meeting.report(A)
    meeting.report(B, digest="other")
    with pytest.raises(FailedPrecondition, match="learner 1 computed another average than the head"):
        meeting.arrive(B)
    assert meeting.commit(A).members == (A,)
    assert meeting.arrive(B2, now=10.0) is None


def test_an_abort_ends_the_epoch_whatever_members_still_hold() -> None:
    meeting = Meeting(2)
    meeting.commit(A, B)
    meeting.arrive(A, B)
    meeting.report(A)
    meeting.report(B, failure="no room")
    meeting.epochs = {A: 1, B: 1}
    formation = meeting.arrive(A, B)
    assert formation
    assert formation.epoch == 2


def test_outcomes_are_forgotten_in_the_end() -> None:
    meeting = Meeting(1)
    for _ in range(20):
        meeting.commit(A)
    assert meeting.rounds.outcome(1, 1) is None
    assert meeting.rounds.outcome(1, 20)


def test_every_rank_is_the_place_among_the_members_and_the_head_has_the_first() -> None:
    formation = Meeting().arrive(C, B, A)
    assert formation
    assert formation.members == (A, B, C)
    assert formation.members[0][0] == HEAD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "sum"}, "fusion.mode = 'sum' must be one of average, allreduce, diloco"),
        ({"straggler_seconds": 0.0}, "fusion.straggler_seconds = 0.0 must be greater than 0"),
        ({"report_seconds": math.inf}, "fusion.report_seconds = inf"),
        ({"outer_learning_rate": math.nan}, "fusion.outer_learning_rate = nan"),
        ({"outer_momentum": 1.0}, "fusion.outer_momentum = 1.0 must be at least 0 and less than 1"),
    ],
)
def test_options_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        FusionOptions(**changes)
