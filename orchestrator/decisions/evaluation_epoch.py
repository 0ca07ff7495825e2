"""Decides which evaluation epoch a tournament is in: on which episodes its agents are scored. Pure functions.

All agents of an epoch are scored on the same episodes. The episodes change, because agents that are selected on fixed
episodes would adapt to them; each change makes scores before and after it harder to compare. Eight epochs are a
compromise.
"""

from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, TournamentSpec

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


def evaluation_epoch_of_agent(spec: TournamentSpec, number: int, running_seconds: float, environment_steps: int) -> int:
    """Returns the epoch in which an agent is scored now.

    In a synchronous tournament it depends only on the round of the agent, because progress is not reproducible: the
    earlier rounds count with the steps they were assigned, and the clock does not count.

    Args:
        spec: Resolved specification.
        number: Number of the agent.
        running_seconds: Wall-clock time of the tournament without pauses.
        environment_steps: Environment steps of all its agents together.
    """
    if not spec.synchronous:
        return evaluation_epoch(spec.objective, running_seconds, environment_steps)
    earlier_agents = number - number % max(1, spec.pool.maximum_pods)
    return evaluation_epoch(spec.objective, 0.0, earlier_agents * spec.assignment.environment_steps)
