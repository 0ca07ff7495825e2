"""A lease reports the counters, and the rate and return of the recent updates."""

from types import SimpleNamespace

import pytest
from allocations import allocated_bytes

from agentpod.learner.checkpoint_files import Counters
from agentpod.learner.progress_reporter import RATE_WINDOW_SECONDS, RECENT_EPISODES, ProgressReporter
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def test_before_the_first_update_neither_rate_nor_return_is_reported() -> None:
    progress = pb.Progress()
    ProgressReporter(SimpleNamespace(progress=progress)).report(
        Counters(environment_steps=7, policy_version=2), 1.0, "shared"
    )
    assert progress == pb.Progress(environment_steps=7, policy_version=2, policy_lag=1.0, plane="shared")


def test_the_rate_covers_the_recent_updates_only() -> None:
    progress = pb.Progress()
    reporter = ProgressReporter(SimpleNamespace(progress=progress))
    # One slow update long ago, then 100 steps every second.
    for now, steps in ((0.0, 10), (100.0, 100), (101.0, 200), (102.0, 300)):
        reporter.record_update(now, steps, [])
    reporter.report(Counters(), 0.0, "")
    assert progress.steps_per_second == pytest.approx(100.0)
    reporter.record_update(102.0 + RATE_WINDOW_SECONDS, 300, [])
    reporter.report(Counters(), 0.0, "")
    assert progress.steps_per_second == pytest.approx(0.0)


def test_the_training_return_is_the_mean_of_the_most_recent_episodes() -> None:
    progress = pb.Progress()
    reporter = ProgressReporter(SimpleNamespace(progress=progress))
    reporter.record_update(0.0, 1, [1000.0])
    reporter.record_update(1.0, 2, [1.0, 3.0] * (RECENT_EPISODES // 2))
    reporter.report(Counters(), 0.0, "")
    assert progress.training_return == 2.0


def test_a_score_is_reported_with_the_fault_of_the_evaluator_and_without_it_again() -> None:
    progress = pb.Progress()
    reporter = ProgressReporter(SimpleNamespace(progress=progress))
    reporter.report_score(Evaluation(mean_return=5.0, evaluator_fault="it hangs"))
    assert (progress.score, progress.evaluator_fault) == (5.0, "it hangs")
    reporter.report_score(Evaluation(mean_return=6.0))
    assert (progress.score, progress.evaluator_fault) == (6.0, "")


def test_a_long_training_needs_no_more_memory_for_its_progress() -> None:
    lease = SimpleNamespace(progress=pb.Progress())
    reporter = ProgressReporter(lease)

    def run(renewals: int) -> None:
        for _ in range(renewals):
            reporter.report(Counters(), 0.0, "shared")
            reporter.report_roles([pb.RoleProgress(role="worker-0"), pb.RoleProgress(role="evaluator")])
            reporter.stamp(0.0)

    run(1000)
    before = allocated_bytes()
    run(20_000)
    assert allocated_bytes() - before < 100_000
