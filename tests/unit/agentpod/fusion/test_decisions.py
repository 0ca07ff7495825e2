"""Tests the two decisions about a fusion round: which learners take part, and whether it is committed."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentpod.fusion.rounds import (
    Arrival,
    FusionOptions,
    MemberId,
    Membership,
    RoundOutcome,
    RoundReport,
    RoundState,
    decide_outcome,
    decide_round,
)
from podrace.errors import InvalidArgument

OPTIONS = FusionOptions(straggler_seconds=30.0, report_seconds=5.0)
ALLREDUCE = replace(OPTIONS, mode="allreduce")
A, B, C = (0, "a"), (1, "b"), (2, "c")
B2 = (1, "b2")
STEPS = 100


def arrival(member: MemberId, time: float = 0.0, *, applied_round: int = 4, epoch: int = 7) -> Arrival:
    index, incarnation = member
    return Arrival(index, incarnation, applied_round, epoch, STEPS * (1 + index), time)


def arrived(*arrivals: Arrival) -> dict[int, Arrival]:
    return {item.index: item for item in arrivals}


SETTLED = RoundState(
    frozenset({0, 1, 2}), last_members=(A, B, C), epoch=7, committed_rounds=4, environment_steps=10_000
)
"""After four committed rounds, with none in progress."""
ALL = arrived(arrival(A, 10.0), arrival(B, 11.0), arrival(C, 12.0))


@dataclass(frozen=True)
class Case:
    """Arrivals and the expected decision: members, epoch and joiners of a round, or until when to wait."""

    name: str
    state: RoundState
    now: float = 12.0
    options: FusionOptions = OPTIONS
    members: tuple[MemberId, ...] = ()
    epoch: int = 0
    joiners: set[int] = field(default_factory=set)
    wait: float | None = None


CASES = [
    Case("no arrivals", SETTLED, wait=math.inf),
    Case(
        "no round forms without the leader",
        replace(SETTLED, arrived=arrived(arrival(B), arrival(C))),
        1e9,
        wait=math.inf,
    ),
    Case("the leader waits for the others", replace(SETTLED, arrived=arrived(arrival(A, 10.0))), wait=40.0),
    Case(
        "the first arrival sets the deadline",
        replace(SETTLED, arrived=arrived(arrival(A, 20.0), arrival(B, 10.0))),
        39.9,
        wait=40.0,
    ),
    Case("all have arrived", replace(SETTLED, arrived=ALL), members=(A, B, C), epoch=7),
    Case(
        "stragglers are dropped",
        replace(SETTLED, arrived=arrived(arrival(A, 10.0), arrival(C, 10.0))),
        40.0,
        members=(A, C),
        epoch=8,
    ),
    Case(
        "a leader that arrives after the deadline does not wait",
        replace(SETTLED, arrived=arrived(arrival(A, 50.0), arrival(B, 10.0))),
        50.0,
        members=(A, B),
        epoch=8,
    ),
    Case(
        "the leader continues alone",
        replace(SETTLED, arrived=arrived(arrival(A, 10.0)), expected=frozenset({0})),
        members=(A,),
        epoch=8,
    ),
    Case(
        "learners that are not expected are not waited for",
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
        "a learner that lost its group keeps its state in a new one",
        replace(SETTLED, arrived=arrived(arrival(A), arrival(B, epoch=0), arrival(C))),
        members=(A, B, C),
        epoch=8,
    ),
    Case(
        "in allreduce it may have missed a step: all take the leader's state",
        replace(SETTLED, arrived=arrived(arrival(A), arrival(B, epoch=0), arrival(C))),
        options=ALLREDUCE,
        members=(A, B, C),
        epoch=8,
        joiners={1, 2},
    ),
    Case(
        "in allreduce without lost members there are no joiners",
        replace(SETTLED, arrived=ALL),
        options=ALLREDUCE,
        members=(A, B, C),
        epoch=7,
    ),
    Case(
        "after an aborted round the same members form a new epoch and keep their state",
        replace(SETTLED, arrived=ALL, aborted=True),
        members=(A, B, C),
        epoch=8,
    ),
    Case(
        "a deviating member takes the leader's state",
        replace(SETTLED, arrived=ALL, aborted=True, deviating=frozenset({2})),
        members=(A, B, C),
        epoch=8,
        joiners={2},
    ),
    Case(
        "in the first round all take the leader's state",
        RoundState(
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
    assert isinstance(decision, Membership)
    assert (decision.members, decision.epoch, set(decision.joiners)) == (case.members, case.epoch, case.joiners)
    assert decision.round == case.state.committed_rounds + 1


FORMED = Membership(5, 7, (A, B, C), frozenset(), "all arrived")


def report(
    member: MemberId, digest: str = "same", failure: str = "", time: float = 20.0, **changes: Any
) -> RoundReport:
    return replace(RoundReport(member, 7, 5, digest, failure, time), **changes)


def running(*reports: RoundReport, lost: tuple[int, ...] = ()) -> RoundState:
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
        pytest.param(running(), 1e9, math.inf, id="no reports"),
        pytest.param(running(report(A), report(B)), 24.9, 25.0, id="one report is missing"),
        pytest.param(
            running(report(A), report(B), report(C)), 20.0, (True, 10_600, "3 learners agree"), id="all agree"
        ),
        pytest.param(running(report(A), report(B)), 25.0, (False, 10_000, "learner 2 did not report"), id="silent"),
        pytest.param(
            running(report(A), lost=(1, 2)),
            20.0,
            (False, 10_000, "learner 1, 2 did not report"),
            id="members that exited are not waited for",
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
            id="a failure still waits for the other reports",
        ),
        pytest.param(
            running(report(A), report(B, "other"), report(C)),
            20.0,
            (False, 10_000, "learner 1 has another average than the leader"),
            id="one deviates",
        ),
        pytest.param(
            running(report(A, "other"), report(B), report(C)),
            20.0,
            (False, 10_000, "learner 1, 2 has another average than the leader"),
            id="the leader's digest decides",
        ),
    ],
)
def test_a_round_is_committed_only_if_all_digests_are_equal(
    state: RoundState, now: float, expected: float | tuple[bool, int, str]
) -> None:
    decision = decide_outcome(now, FORMED, state, OPTIONS)
    assert decision == (RoundOutcome(*expected) if isinstance(expected, tuple) else expected)


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
def test_invalid_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        FusionOptions(**changes)
