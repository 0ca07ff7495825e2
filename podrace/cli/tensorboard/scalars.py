"""Turns submissions and the progress of pods into values of TensorBoard. Pure.

The tags are those of Stable-Baselines3, so that runs of both can be compared in one dashboard.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from podrace.client.curve.points import CHAMPION
from podrace.leaderboard.v1.leaderboard_pb2 import VERDICT_ACCEPTED, VERDICT_EVICTED, Candidate
from podrace.orchestrator.v1.orchestrator_pb2 import Pod

EVALUATION = "eval/mean_reward"
TRAINING = "rollout/ep_rew_mean"
RATE = "time/fps"
UPDATES = "train/n_updates"
RANKED = {VERDICT_ACCEPTED, VERDICT_EVICTED}
"""Verdicts on candidates that are, or were, on the board."""


@dataclass(frozen=True)
class ScalarPoint:
    """One value at one step of a run."""

    run: str
    """Id of an agent, or `champion`."""
    tag: str
    step: int
    """Environment steps: of the agent itself; of all agents for the champion."""
    value: float
    wall_time: float
    """Seconds since 1970."""


class SubmissionHistory:
    """Follows the submissions of a tournament in their order of arrival; the champion's values depend on all of them.

    history = SubmissionHistory()
    for candidate in submissions:
        points += history.add(candidate)
    """

    def __init__(self) -> None:
        """Starts before the first submission."""
        self._steps: dict[str, int] = {}
        self._best = -math.inf

    def add(self, candidate: Candidate) -> list[ScalarPoint]:
        """Returns the values of a submission, and those of the champion if it now leads.

        The champion is the candidate that the board ranks first, by its estimate and not by its noisy score.
        """
        name, step = candidate.agent_id, candidate.agent_environment_steps
        time = candidate.submit_time.seconds + candidate.submit_time.nanos * 1e-9
        self._steps[name] = max(step, self._steps.get(name, 0))
        values = {EVALUATION: candidate.score, "eval/standard_error": candidate.standard_error}
        values |= {f"eval/{measure}": value for measure, value in sorted(candidate.episode_metrics.items())}
        points = [ScalarPoint(name, tag, step, value, time) for tag, value in values.items()]
        estimate = candidate.estimate if candidate.HasField("estimate") else candidate.score
        if candidate.verdict in RANKED and not candidate.evaluator_fault and estimate > self._best:
            self._best = estimate
            points.append(ScalarPoint(CHAMPION, EVALUATION, sum(self._steps.values()), estimate, time))
        return points


class PodHistory:
    """Follows the progress of pods, and reports each step of it once."""

    def __init__(self) -> None:
        """Starts before the first report."""
        self._steps: dict[str, int] = {}

    def add(self, pods: Sequence[Pod], wall_time: float) -> Iterator[ScalarPoint]:
        """Yields the values of the agents that have advanced since the last call."""
        for pod in pods:
            step = pod.progress.environment_steps
            if not pod.agent_id or step <= self._steps.get(pod.agent_id, 0):
                continue
            self._steps[pod.agent_id] = step
            values = {RATE: pod.progress.steps_per_second, UPDATES: float(pod.progress.policy_version)}
            if pod.progress.HasField("training_return"):
                values[TRAINING] = pod.progress.training_return
            for tag, value in values.items():
                yield ScalarPoint(pod.agent_id, tag, step, value, wall_time)
