"""Writes the progress that a lease reports to the orchestrator."""

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from agentpod.learner.checkpoint_files import Counters
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

RECENT_EPISODES = 100
"""Number of episodes that the training return is averaged over."""
RATE_WINDOW_SECONDS = 5.0
"""Time that the steps per second are averaged over."""
LONGEST_FAULT = 1000
"""Characters of a fault that are reported."""


class Reported(Protocol):
    """A lease, whose messages have the progress."""

    progress: pb.Progress


class ProgressReporter:
    """The only writer of a lease's progress.

    progress = ProgressReporter(lease)
    progress.enter(pb.POD_ACTIVITY_TRAINING)
    progress.record_update(now, counters.environment_steps, episode_returns)
    progress.report(counters, policy_lag, plane)
    progress.report_score(evaluation)
    """

    def __init__(self, lease: Reported, gpu_use: Callable[[], Sequence[pb.GpuUse]] = tuple) -> None:
        """Writes a lease's progress.

        Args:
            lease: The lease.
            gpu_use: Returns the latest use of the pod's GPUs, without waiting for it.
        """
        self._lease, self._gpu_use = lease, gpu_use
        self._began: float | None = None
        self._recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._recent_updates: deque[tuple[float, int]] = deque()
        self._updates = 0

    @property
    def _progress(self) -> pb.Progress:
        return self._lease.progress

    def enter(self, activity: pb.PodActivity.ValueType) -> None:
        """Reports what the pod does from now on."""
        self._progress.activity = activity

    def begin_training(self, now: float) -> None:
        """Records that the first rollout is collected from now on, by a monotonic clock."""
        self._began = now

    def stamp(self, now: float) -> None:
        """Reports how long ago the training began and the last update was, and the GPUs, before a message is sent.

        The progress becomes a new message: one whose texts and lists are replaced keeps the memory of all earlier ones.
        """
        renewed = pb.Progress()
        renewed.CopyFrom(self._progress)
        self._lease.progress = renewed
        del self._progress.gpus[:]
        self._progress.gpus.extend(self._gpu_use())
        if self._began is not None:
            self._progress.training_age_seconds = max(0.0, now - self._began)
        if self._recent_updates:
            self._progress.update_age_seconds = max(0.0, now - self._recent_updates[-1][0])

    def record_update(self, now: float, environment_steps: int, episode_returns: Sequence[float]) -> None:
        """Adds an update to the windows that the rate and the training return are computed over.

        Args:
            now: Time of the update in seconds, on a monotonic clock.
            environment_steps: Steps that the agent has taken so far.
            episode_returns: Returns of the episodes that ended since the previous update.
        """
        self._updates += 1
        self._recent_updates.append((now, environment_steps))
        while len(self._recent_updates) > 2 and now - self._recent_updates[0][0] > RATE_WINDOW_SECONDS:
            self._recent_updates.popleft()
        self._recent_returns.extend(episode_returns)

    def updates_in_training(self) -> int | None:
        """Returns the number of recorded updates; None while the pod does something else than training."""
        return self._updates if self._progress.activity == pb.POD_ACTIVITY_TRAINING else None

    def report(self, counters: Counters, policy_lag: float, plane: str) -> None:
        """Reports the progress of the training, with the rate and the return of the recorded updates."""
        progress = self._progress
        progress.environment_steps = counters.environment_steps
        progress.policy_version = counters.policy_version
        progress.policy_lag = policy_lag
        if progress.plane != plane:
            progress.plane = plane
        if len(self._recent_updates) > 1:
            (earlier, steps), (later, more) = self._recent_updates[0], self._recent_updates[-1]
            progress.steps_per_second = (more - steps) / max(later - earlier, 1e-9)
        if self._recent_returns:
            progress.training_return = statistics.fmean(self._recent_returns)

    def report_roles(self, roles: Sequence[pb.RoleProgress]) -> None:
        """Reports the progress of each role."""
        del self._progress.roles[:]
        self._progress.roles.extend(roles)

    def report_score(self, evaluation: Evaluation) -> None:
        """Reports the score of an evaluation, and the fault of the tournament's own evaluator if there was one."""
        self._progress.score = evaluation.mean_return
        self.report_evaluator_fault(evaluation)

    def report_evaluator_fault(self, evaluation: Evaluation) -> None:
        """Reports why the built-in evaluator was used instead of the tournament's own; empty if it was not."""
        self._progress.evaluator_fault = evaluation.evaluator_fault

    def report_shared_experience(self, received: pb.SharedExperience) -> None:
        """Reports what the agent has received of the experience of others."""
        received.left_out = received.left_out[:LONGEST_FAULT]
        self._progress.shared_experience.CopyFrom(received)

    def report_stored(self, environment_steps: int) -> None:
        """Reports that a checkpoint without a score was stored."""
        self._progress.stored_environment_steps = environment_steps

    def report_storage_fault(self, fault: str) -> None:
        """Reports why the pod waits for storage; empty: it does not wait."""
        self._progress.storage_fault = fault[:LONGEST_FAULT]
