"""Tests the decision about a candidate that waits until another pod has verified it."""

import pytest

from orchestrator.decisions.verification import LONELY_SECONDS, WAIT_SECONDS, TrainingPod, while_waiting

OWNER = ["t-p0"]


def training(*scores: float | None) -> list[TrainingPod]:
    return [TrainingPod(f"t-p{number}", f"t-a{number}", score) for number, score in enumerate(scores)]


def test_the_pod_that_trained_the_agent_is_never_asked_to_verify_it() -> None:
    step = while_waiting(60.0, OWNER, ["t-p0", "t-p1"], training(None, 5.0))
    assert (step.interrupt, step.missing) == ("t-a1", "")
    assert while_waiting(60.0, OWNER, ["t-p0", "t-p1"], training(None)).interrupt == ""


@pytest.mark.parametrize(("scores", "interrupted"), [((9.0, 5.0, 3.0), "t-a2"), ((9.0, 5.0, None), "t-a2")])
def test_the_best_other_agent_trains_on(scores: tuple[float | None, ...], interrupted: str) -> None:
    pods = ["t-p0", "t-p1", "t-p2"]
    assert while_waiting(WAIT_SECONDS, OWNER, pods, training(*scores)).interrupt == interrupted


def test_a_pod_that_becomes_free_soon_is_waited_for() -> None:
    assert while_waiting(WAIT_SECONDS - 0.1, OWNER, ["t-p0", "t-p1"], training(1.0, 2.0)).interrupt == ""


def test_with_one_pod_only_it_is_said_what_is_missing() -> None:
    assert while_waiting(LONELY_SECONDS - 1.0, OWNER, OWNER, training(1.0)).missing == ""
    step = while_waiting(LONELY_SECONDS, OWNER, OWNER, training(1.0))
    assert step.interrupt == ""
    assert "no other pod than t-p0 is running" in step.missing
    assert "pool.minimum_pods" in step.missing
