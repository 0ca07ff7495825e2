"""Divides what is left of `objective.environment_steps` among the agents in training. Pure functions.

Pods train agents at the same time and report their steps seconds later. If each agent could train its whole assignment,
the tournament would exceed its budget by one assignment for each pod. An agent therefore gets at most the steps that
are not promised to other agents, so the budget is exceeded by at most one rollout for each pod.
"""

from collections.abc import Iterable

from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec


def steps_left(objective: ObjectiveSpec, counted_steps: int, promised: Iterable[int]) -> int | None:
    """Returns the environment steps that a further agent may train; None without such an objective.

    Args:
        objective: Objective of the tournament.
        counted_steps: Environment steps of all its agents so far.
        promised: For each other agent in training, the steps that it may still train.
    """
    if not objective.HasField("environment_steps"):
        return None
    return max(0, objective.environment_steps - counted_steps - sum(promised))


def share_of_round(objective: ObjectiveSpec, earlier_steps: int, round_size: int) -> int | None:
    """Returns the environment steps that each agent of a synchronous round may train; None without such an objective.

    Args:
        objective: Objective of the tournament.
        earlier_steps: Environment steps of the agents of all earlier rounds.
        round_size: Number of agents of a round.
    """
    left = steps_left(objective, earlier_steps, ())
    return None if left is None else -(-left // round_size)
