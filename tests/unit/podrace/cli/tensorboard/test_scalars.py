from typing import Any

from podrace.cli.tensorboard.scalars import PodHistory, ScalarPoint, SubmissionHistory
from podrace.leaderboard.v1.leaderboard_pb2 import VERDICT_ACCEPTED, VERDICT_REFUSED, Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Pod


def submission(agent: str, steps: int, score: float, **more: Any) -> Candidate:
    more = {"verdict": VERDICT_ACCEPTED} | more
    return Candidate(agent_id=agent, agent_environment_steps=steps, score=score, standard_error=2.0, **more)


def of_champion(points: list[ScalarPoint]) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in points if point.run == "champion"]


def test_a_submission_has_the_tags_of_stable_baselines3_at_the_steps_of_its_agent() -> None:
    entry = submission("t-a1", 4096, 120.0, environment_steps=9000, episode_metrics={"sharpe": 1.5})
    entry.submit_time.FromMilliseconds(1_500)
    points = [one for one in SubmissionHistory().add(entry) if one.run == "t-a1"]
    assert [(one.tag, one.step, one.value, one.wall_time) for one in points] == [
        ("eval/mean_reward", 4096, 120.0, 1.5),
        ("eval/standard_error", 4096, 2.0, 1.5),
        ("eval/sharpe", 4096, 1.5, 1.5),
    ]


def test_the_champion_has_the_estimate_of_what_leads_over_the_steps_of_all_agents() -> None:
    history = SubmissionHistory()
    assert of_champion(history.add(submission("t-a0", 100, 10.0))) == [(100, 10.0)]
    assert of_champion(history.add(submission("t-a1", 50, 99.0, estimate=9.0))) == []
    assert of_champion(history.add(submission("t-a1", 150, 30.0, estimate=20.0))) == [(250, 20.0)]


def test_what_is_not_on_the_board_or_was_scored_by_another_evaluator_does_not_lead() -> None:
    history = SubmissionHistory()
    assert of_champion(history.add(submission("t-a0", 1, 10.0, verdict=VERDICT_REFUSED))) == []
    assert of_champion(history.add(submission("t-a0", 2, 10.0, evaluator_fault="crashed"))) == []


def pod(agent: str, steps: int, **more: Any) -> Pod:
    entry = Pod(pod_id="t-p0", agent_id=agent)
    entry.progress.environment_steps, entry.progress.steps_per_second = steps, 1000.0
    for name, value in more.items():
        setattr(entry.progress, name, value)
    return entry


def test_progress_is_written_once_for_each_step() -> None:
    history = PodHistory()
    first = list(history.add([pod("t-a0", 64, policy_version=3, training_return=21.5), pod("", 0)], 7.0))
    assert [(one.run, one.tag, one.step, one.value, one.wall_time) for one in first] == [
        ("t-a0", "time/fps", 64, 1000.0, 7.0),
        ("t-a0", "train/n_updates", 64, 3.0, 7.0),
        ("t-a0", "rollout/ep_rew_mean", 64, 21.5, 7.0),
    ]
    assert not list(history.add([pod("t-a0", 64)], 8.0))
    assert {one.tag for one in history.add([pod("t-a0", 128)], 9.0)} == {"time/fps", "train/n_updates"}
