import pytest

from agentpod.qualification.learning import STAND_IN, TASKS, Learned, LearningTask, judge
from agentpod.qualification.trial_pod import specification
from podrace.qualification.findings import Grade

TASK = LearningTask("cartpole", {}, {}, wanted=100.0, seconds=60.0, every_environment_steps=1000, reference="Brax")


def grade(scores: tuple[float, ...], reached_seconds: float | None = None) -> Grade:
    return judge(Learned(TASK, "cuda:0", scores, 5000, reached_seconds)).grade


def test_an_agent_that_reaches_the_return_in_time_passes() -> None:
    assert grade((20.0, 101.0), 30.0) == Grade.PASS


def test_an_agent_on_the_way_is_slow_and_one_that_does_not_learn_fails() -> None:
    assert grade((20.0, 40.0)) == Grade.SLOW
    assert grade((20.0, 40.0, 10.0)) == Grade.SLOW
    assert grade((20.0, 21.0)) == Grade.FAIL
    assert grade((20.0, 5.0)) == Grade.FAIL


def test_an_agent_without_a_score_fails_with_what_the_pod_said() -> None:
    found = judge(Learned(TASK, "cuda:0", (), 0, None, "kernels are compiled"))
    assert (found.grade, found.measured) == (Grade.FAIL, "no score: kernels are compiled")


def test_the_reference_is_printed_whatever_the_grade() -> None:
    for scores, reached in (((1.0, 200.0), 5.0), ((1.0, 2.0), None), ((), None)):
        assert judge(Learned(TASK, "cuda:0", scores, 0, reached)).reference == "Brax"


@pytest.mark.parametrize("task", [*TASKS, STAND_IN], ids=lambda task: task.name)
def test_every_task_is_a_valid_specification(task: LearningTask) -> None:
    specification(
        environment=task.environment,
        algorithms={"ppo": {"hyperparameters": task.hyperparameters}},
        assignment={"environment_steps": 10**12},
        evaluation={"every_environment_steps": task.every_environment_steps, **task.evaluation},
        pod={"layout": "fused", "gpus": 1},
    )
