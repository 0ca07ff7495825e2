"""When an agent is scored, and what an error means for it."""

import asyncio
from types import SimpleNamespace

import pytest

from agentpod.learner.ending import EXIT_ROLE_LOST, ending_of_error
from agentpod.learner.evaluation_schedule import EvaluationSchedule, Scorer
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.session.role_client import RoleLost
from podrace import errors
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec


def schedule(every: int, share: float = 0.1, steps: int = 0) -> EvaluationSchedule:
    return EvaluationSchedule.starting_at(steps, EvaluationSpec(every_environment_steps=every, share=share))


def test_an_evaluation_is_due_once_at_each_multiple():
    due = schedule(1000)
    assert [due.take(steps) for steps in (512, 1024, 1536, 2048, 2560, 5120, 5632, 6144)] == [
        False,
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]


def test_an_agent_that_goes_on_is_not_scored_at_once():
    due = schedule(1000, steps=2500)
    assert not due.take(2900)
    assert due.take(3000)


def test_evaluations_stay_within_their_share():
    due = schedule(1000, share=0.1)
    assert due.affordable(100.0, 4.0, 5.0)
    assert not due.affordable(100.0, 8.0, 5.0)
    # Nothing is known of the first one: it is made.
    assert due.affordable(0.0, 0.0, 0.0)


@pytest.mark.parametrize(("fault", "counted_seconds"), [("", 300.0), ("evaluator python:a:b: it hangs", 2.0)])
async def test_waiting_in_vain_for_a_tournaments_evaluator_is_not_on_the_account_of_evaluation(fault, counted_seconds):
    clock, progress, published = iter((1000.0, 1300.0)), pb.Progress(), []
    scored = Evaluation(mean_return=5.0, wall_seconds=2.0, evaluator_fault=fault)

    async def evaluate(*_, **__):
        return scored

    async def publish(frozen, evaluation):
        published.append(evaluation)

    scorer = Scorer(
        SimpleNamespace(evaluate=evaluate),
        SimpleNamespace(publish=publish),
        ProgressReporter(progress),
        asyncio.get_running_loop().create_future(),
        EvaluationSpec(),
        agent_seed=1,
        clock=lambda: next(clock),
    )
    scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), None)
    await scorer.settle()
    assert published == [scored]
    assert (progress.score, progress.evaluator_fault) == (5.0, fault)
    assert (scorer.last_seconds, scorer.total_seconds) == (counted_seconds, counted_seconds)


@pytest.mark.parametrize(
    ("error", "opened", "outcome"),
    [
        (errors.InvalidArgument("no such environment"), False, pb.OUTCOME_SPEC_FAILED),
        (errors.Unimplemented("install mujoco"), False, pb.OUTCOME_SPEC_FAILED),
        (errors.ResourceExhausted("/dev/shm is full"), False, pb.OUTCOME_SPEC_FAILED),
        (errors.Internal("the factory raised"), False, pb.OUTCOME_SPEC_FAILED),
        (
            errors.InvalidArgument("choices only", reason="ERROR_REASON_UNSUITABLE_SPACE"),
            False,
            pb.OUTCOME_AGENT_FAILED,
        ),
        (errors.ResourceExhausted("replay_capacity"), True, pb.OUTCOME_AGENT_FAILED),
        (errors.InvalidArgument("minibatch"), True, pb.OUTCOME_AGENT_FAILED),
        (errors.DataLoss("not finite"), True, pb.OUTCOME_AGENT_FAILED),
        (errors.DataLoss("the parent's files are damaged"), False, pb.OUTCOME_AGENT_FAILED),
        (errors.NotFound("the parent's files are gone"), False, pb.OUTCOME_AGENT_FAILED),
        (errors.FailedPrecondition("stale"), True, pb.OUTCOME_DRAINED),
        (errors.Unavailable("no leaderboard"), True, pb.OUTCOME_DRAINED),
    ],
)
def test_what_is_the_agents_fault_is_told_from_what_is_not(error, opened, outcome):
    ending = ending_of_error(error, opened=opened)
    assert ending.outcome == outcome
    assert ending.message == error.message
    assert ending.exit_code is None


def test_a_role_that_is_lost_ends_the_pod_after_publishing():
    ending = ending_of_error(RoleLost("gone"), opened=True)
    assert (ending.outcome, ending.exit_code, ending.publish) == (pb.OUTCOME_DRAINED, EXIT_ROLE_LOST, True)
