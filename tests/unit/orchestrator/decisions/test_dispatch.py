import dataclasses
from typing import Any

import pytest

from orchestrator.decisions.dispatch import (
    STALE_EPOCH,
    AssignExisting,
    AssignNew,
    DispatchState,
    Drain,
    Holder,
    PausedIncumbent,
    RoundProgress,
    Wait,
    WorkItem,
    check_epoch,
    choose,
    direct,
    has_trained,
    is_last_failure,
    lost_too_often,
)
from podrace.errors import FailedPrecondition
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

ME = Holder("p0", "second-run")
OTHER = Holder("p1", "run")


def state(**changes: object) -> DispatchState:
    plain = DispatchState(drain_reason="", end_reason="", evaluations=[], agents=[], next_number=3, rounds=None)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def held_by(holder: Holder | None, work_id: str = "a0", *, alive: bool = True, valid: bool = True) -> WorkItem:
    return WorkItem(work_id, holder, alive, valid)


def test_a_repeated_request_gets_the_held_work_under_the_same_epoch() -> None:
    agents = [held_by(None, "a0"), held_by(ME, "a1")]
    assert choose(ME, state(agents=agents)) == AssignExisting("a1", "the request was repeated", repeated=True)


def test_an_evaluation_comes_before_an_agent_of_which_the_pod_only_holds_the_number() -> None:
    number = dataclasses.replace(held_by(ME, "a7"), generated=False)
    kept = AssignExisting("a7", "the request was repeated", repeated=True)
    waiting = state(agents=[held_by(None, "a3"), number], evaluations=[held_by(None, "e0")])
    assert choose(ME, waiting) == AssignExisting("e0", "no pod holds it")
    assert choose(ME, dataclasses.replace(waiting, evaluations=[])) == kept
    paused = dataclasses.replace(waiting, evaluations=[], paused_incumbent=PausedIncumbent())
    assert choose(ME, paused) == kept


def test_evaluations_come_before_agents() -> None:
    choice = choose(ME, state(evaluations=[held_by(None, "e0")], agents=[held_by(None, "a0")]))
    assert isinstance(choice, AssignExisting)
    assert choice.work_id == "e0"


@pytest.mark.parametrize(
    "work",
    [
        held_by(None),
        held_by(OTHER, alive=False),
        held_by(OTHER, valid=False),
        held_by(Holder("p0", "first-run")),
    ],
    ids=["given back", "pod dead", "lease expired", "previous run of the same pod"],
)
def test_a_free_agent_is_assigned_before_a_new_one(work: WorkItem) -> None:
    choice = choose(ME, state(agents=[work]))
    assert isinstance(choice, AssignExisting)
    assert (choice.work_id, choice.repeated) == ("a0", False)


def test_an_agent_with_a_valid_lease_is_not_assigned_again() -> None:
    assert choose(ME, state(agents=[held_by(OTHER)])) == AssignNew(3)


def test_the_oldest_free_agent_is_assigned_first() -> None:
    agents = [held_by(OTHER, "a0"), held_by(None, "a1"), held_by(None, "a2")]
    choice = choose(ME, state(agents=agents))
    assert isinstance(choice, AssignExisting)
    assert choice.work_id == "a1"


def test_the_next_agent_of_a_paused_incumbent_comes_before_free_agents_but_not_before_evaluations() -> None:
    paused = state(agents=[held_by(None)], paused_incumbent=PausedIncumbent())
    assert choose(ME, paused) == AssignNew(3)
    assert choose(ME, dataclasses.replace(paused, paused_incumbent=PausedIncumbent(ME.pod_id))) == AssignNew(3)
    choice = choose(ME, dataclasses.replace(paused, evaluations=[held_by(None, "e0")]))
    assert isinstance(choice, AssignExisting)
    assert choice.work_id == "e0"


def test_other_pods_leave_a_paused_incumbent_to_the_grown_pod() -> None:
    kept = state(agents=[held_by(None)], paused_incumbent=PausedIncumbent("p9"))
    assert choose(ME, kept) == AssignExisting("a0", "no pod holds it")
    assert choose(ME, dataclasses.replace(kept, agents=[])) == Wait(
        "the incumbent continues in p9, which is between two agents"
    )
    ended = dataclasses.replace(kept, end_reason="cancelled")
    assert choose(ME, ended) == Drain("cancelled")


def test_a_pod_that_holds_an_agent_keeps_it_although_the_incumbent_is_paused() -> None:
    held = state(agents=[held_by(ME)], paused_incumbent=PausedIncumbent())
    assert choose(ME, held) == AssignExisting("a0", "the request was repeated", repeated=True)


def test_a_retired_pod_is_drained_even_if_there_is_work() -> None:
    assert choose(ME, state(drain_reason="the pool shrinks", agents=[held_by(ME)])) == Drain("the pool shrinks")


def test_after_the_end_evaluations_are_assigned_but_agents_are_not() -> None:
    ended = state(end_reason="cancelled", agents=[held_by(None)])
    assert choose(ME, ended) == Drain("cancelled")
    choice = choose(ME, dataclasses.replace(ended, evaluations=[held_by(None, "e0")]))
    assert isinstance(choice, AssignExisting)
    assert choice.work_id == "e0"


def test_pods_wait_for_further_evaluations_while_the_champion_is_selected() -> None:
    ended = state(end_reason="target return", agents=[held_by(None)], selects_champion=True)
    assert choose(ME, ended) == Wait("the champion is being selected")
    assert choose(ME, dataclasses.replace(ended, drain_reason="it has no work")) == Drain("it has no work")


def test_a_round_waits_for_every_agent_of_the_previous_rounds() -> None:
    rounds = RoundProgress(size=3, unfinished_numbers=[1], judged=1)
    choice = choose(ME, state(agents=[held_by(OTHER, "a1")], rounds=rounds))
    assert choice == Wait("round 1 waits for agent 1 of round 0")


def test_a_round_waits_until_the_objective_was_checked_on_the_previous_round() -> None:
    rounds = RoundProgress(size=3, unfinished_numbers=[], judged=0)
    assert isinstance(choose(ME, state(rounds=rounds)), Wait)
    assert choose(ME, state(rounds=dataclasses.replace(rounds, judged=1))) == AssignNew(3)


def test_the_first_round_starts_at_once() -> None:
    assert choose(ME, state(next_number=0, rounds=RoundProgress(3, [], 0))) == AssignNew(0)


@pytest.mark.parametrize("epoch", [1, 3])
def test_every_epoch_but_the_current_one_is_stale(epoch: int) -> None:
    check_epoch("a0", 2, 2)
    with pytest.raises(FailedPrecondition) as raised:
        check_epoch("a0", 2, epoch)
    assert raised.value.reason == STALE_EPOCH


@pytest.mark.parametrize(
    ("held", "training", "drain", "end", "directive"),
    [
        (True, True, "", "", pb.DIRECTIVE_CONTINUE),
        (True, True, "shrinks", "", pb.DIRECTIVE_DRAIN),
        (True, True, "", "cancelled", pb.DIRECTIVE_DRAIN),
        (True, False, "", "cancelled", pb.DIRECTIVE_CONTINUE),
        (True, False, "shrinks", "", pb.DIRECTIVE_DRAIN),
        (False, True, "", "", pb.DIRECTIVE_CANCEL),
    ],
)
def test_the_directive_follows_from_the_states_of_lease_pod_and_tournament(
    held: bool, training: bool, drain: str, end: str, directive: pb.Directive.ValueType
) -> None:
    answer = direct(held=held, training=training, drain_reason=drain, end_reason=end)
    assert answer.directive == directive
    assert bool(answer.reason) == (directive != pb.DIRECTIVE_CONTINUE)


def test_only_a_pod_that_trains_and_may_stay_yields() -> None:
    def directive(**changes: object) -> int:
        values: dict[str, Any] = {"held": True, "training": True, "drain_reason": "", "end_reason": ""} | changes
        return direct(**values, yield_reason="a check waits").directive

    assert directive() == pb.DIRECTIVE_YIELD
    assert directive(training=False) == pb.DIRECTIVE_CONTINUE
    assert directive(drain_reason="the pool shrinks") == pb.DIRECTIVE_DRAIN
    assert directive(end_reason="cancelled") == pb.DIRECTIVE_DRAIN
    assert directive(end_reason="the target is reached", selects_champion=True) == pb.DIRECTIVE_YIELD
    assert directive(drain_reason="too many", end_reason="over", selects_champion=True) == pb.DIRECTIVE_DRAIN
    assert directive(held=False) == pb.DIRECTIVE_CANCEL


def test_three_failures_in_a_row_per_algorithm_fail_the_tournament() -> None:
    assert [is_last_failure(count) for count in (1, 2, 3)] == [False, False, True]
    # One algorithm that always fails must not end the tournament for the others.
    assert [is_last_failure(count, algorithms=3) for count in (3, 8, 9)] == [False, False, True]


def test_an_evaluation_fails_after_three_lost_pods() -> None:
    lost = held_by(OTHER, "e0", alive=False)
    assert lost_too_often(2, lost, ME) == ""
    assert lost_too_often(3, lost, ME)
    assert lost_too_often(3, held_by(OTHER, "e0"), ME) == "", "its third pod is running it"
    assert lost_too_often(9, held_by(None, "e0"), ME) == "", "it was given back, not lost"


@pytest.mark.parametrize(
    ("progress", "known_steps", "stuck", "trained"),
    [
        (pb.Progress(), 0, False, False),
        (pb.Progress(environment_steps=1), 0, False, True),
        (pb.Progress(environment_steps=500), 500, False, False),
        (pb.Progress(environment_steps=501), 500, False, True),
        # The pod continues from a checkpoint that is older than the last report of the pod before.
        (pb.Progress(environment_steps=400, update_age_seconds=0.1), 500, False, True),
        (pb.Progress(environment_steps=400, score=1.0), 500, False, True),
        (pb.Progress(activity=pb.POD_ACTIVITY_TRAINING), 0, False, False),
        (pb.Progress(activity=pb.POD_ACTIVITY_TRAINING), 0, True, True),
        (pb.Progress(activity=pb.POD_ACTIVITY_OPENING), 0, True, False),
    ],
)
def test_a_pod_has_trained_if_it_reports_own_steps_an_update_or_a_role_that_was_stuck_in_training(
    progress: pb.Progress, known_steps: int, stuck: bool, trained: bool
) -> None:
    assert has_trained(progress, known_steps, stuck=stuck) is trained
