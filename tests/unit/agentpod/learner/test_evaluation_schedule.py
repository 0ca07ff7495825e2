"""Evaluations happen on schedule and within their share of time."""

import asyncio
from types import SimpleNamespace

import pytest

from agentpod.learner.evaluation_schedule import EvaluationSchedule, Scorer
from agentpod.learner.progress_reporter import ProgressReporter
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec, TournamentSpec


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


def test_an_agent_that_resumes_is_not_evaluated_at_once():
    due = schedule(1000, steps=2500)
    assert not due.take(2900)
    assert due.take(3000)


def test_evaluations_stay_within_their_share():
    due = schedule(1000, share=0.1)
    assert due.affordable(100.0, 4.0, 5.0)
    assert not due.affordable(100.0, 8.0, 5.0)
    # The duration of the first evaluation is unknown: it is always affordable.
    assert due.affordable(0.0, 0.0, 0.0)


@pytest.mark.parametrize(("fault", "counted_seconds"), [("", 300.0), ("evaluator python:a:b: it hangs", 2.0)])
async def test_time_lost_to_a_failing_evaluator_plugin_does_not_count_as_evaluation_time(fault, counted_seconds):
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
        SimpleNamespace(stop=asyncio.get_running_loop().create_future(), evaluation_epoch=0),
        TournamentSpec(synchronous=True, evaluation=EvaluationSpec(episodes=8)),
        clock=lambda: next(clock),
    )
    scorer.start(SimpleNamespace(counters=SimpleNamespace(policy_version=3)), SimpleNamespace(release=lambda: None))
    await scorer.settle()
    assert published == [scored]
    assert (progress.score, progress.evaluator_fault) == (5.0, fault)
    assert (scorer.last_seconds, scorer.total_seconds) == (counted_seconds, counted_seconds)
