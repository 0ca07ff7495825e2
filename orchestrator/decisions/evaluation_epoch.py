"""Decides which evaluation epoch a tournament is in: on which episodes its agents are scored. Pure functions.

All agents of an epoch are scored on the same episodes. The episodes change, because agents that are selected on fixed
episodes would adapt to them; each change makes scores before and after it harder to compare. Eight epochs are a
compromise.
"""

from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec

EPOCHS = 8
"""Evaluation epochs of a tournament."""


def evaluation_epoch(objective: ObjectiveSpec, running_seconds: float, environment_steps: int) -> int:
    """Returns the epoch, from 0 to 7: by the share of the clock or of the steps that is used up, the larger.

    A tournament whose only objective is a target return stays in epoch 0.

    Args:
        objective: When the tournament ends.
        running_seconds: Wall-clock time without pauses.
        environment_steps: Environment steps of all agents together.
    """
    shares = [0.0]
    clock_seconds = objective.wall_clock_duration.ToNanoseconds() / 1e9
    if clock_seconds > 0:
        shares.append(running_seconds / clock_seconds)
    if objective.environment_steps:
        shares.append(environment_steps / objective.environment_steps)
    return min(int(EPOCHS * max(0.0, *shares)), EPOCHS - 1)
