"""Decides what to do about a candidate that waits until another pod has verified it. Pure functions.

The evaluation is queued like any other one, and is not assigned to a pod that has trained the agent.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

WAIT_SECONDS = 3.0
"""After this time without a free pod, another pod gives its agent back, plays, and then resumes the agent."""
LONELY_SECONDS = 10.0
"""After this time without another pod, an event says what is missing."""


@dataclass(frozen=True)
class TrainingPod:
    """A pod that trains an agent of the tournament."""

    pod_id: str
    work_id: str
    """The agent."""
    score: float | None
    """Last score of its agent; None before the first."""


@dataclass(frozen=True)
class WaitingStep:
    """What to do while no pod plays the verification."""

    interrupt: str = ""
    """Agent whose pod is asked to play; empty: none."""
    missing: str = ""
    """Why no pod can play, in one line; empty if one can."""


def while_waiting(
    waited_seconds: float, owners: Collection[str], pods: Iterable[str], training: Iterable[TrainingPod]
) -> WaitingStep:
    """Returns what to do while no pod has taken the verification.

    Args:
        waited_seconds: Time since it was queued.
        owners: Pods that have trained the agent.
        pods: Pods of the tournament that are not being stopped.
        training: Those that train an agent, the one assigned first comes first.
    """
    if not set(pods) - set(owners):
        missing = (
            f"no other pod than {', '.join(sorted(owners)) or 'those of its agent'} is running; the candidate cannot"
            " lead until another pod plays its episodes: raise pool.minimum_pods or start an external pod, or set"
            " evaluation.verify = 0 in a new tournament"
        )
        return WaitingStep(missing=missing if waited_seconds >= LONELY_SECONDS else "")
    if waited_seconds < WAIT_SECONDS:
        return WaitingStep()
    able = [one for one in training if one.pod_id not in owners]
    # One without a score, otherwise the one with the lowest, so that the best agent continues to train.
    able.sort(key=lambda one: (one.score is not None, one.score or 0.0))
    return WaitingStep(interrupt=able[0].work_id if able else "")
