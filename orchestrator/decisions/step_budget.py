"""Divides what is left of `objective.environment_steps` among the agents in training. Pure functions.

Pods train agents at the same time and report their steps seconds later. If each agent could train its whole assignment,
the tournament would exceed its budget by one assignment for each pod. An agent therefore gets at most the steps that
are not promised to other agents, so the budget is exceeded by at most one rollout for each pod.

Nor does an agent get more than the equal part of its pod of what is left to train. Without this rule, the last long
assignments would take all that is left, and the other pods would wait for the end.
"""

from collections.abc import Collection

from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec


def steps_left(
    objective: ObjectiveSpec, counted_steps: int, promised: Collection[int], *, pods: int = 1, quantum: int = 0
) -> int | None:
    """Returns the environment steps that a further agent may train; None without such an objective.

    Args:
        objective: Objective of the tournament.
        counted_steps: Environment steps of all its agents so far.
        promised: For each other agent in training, the steps that it may still train.
        pods: Pods of the tournament.
        quantum: Steps between two scores: an agent gets as many if they are left, however small its part is.
    """
    if not objective.HasField("environment_steps"):
        return None
    left = max(0, objective.environment_steps - counted_steps)
    part = -(-left // max(pods, len(promised) + 1))
    return max(0, min(left - sum(promised), max(quantum, part)))


def is_used_up(limit: int | None, trained_steps: int, *, needed: bool) -> bool:
    """Returns whether an agent is not assigned because no environment steps are left for it.

    Args:
        limit: Own environment steps at which it ends at the latest; None: no such limit.
        trained_steps: Those that were reported.
        needed: Whether its round waits for it. Then a pod resumes it, trains what its last checkpoint lacks, and scores
            it: the pod before may have been lost between its last step and its last score.
    """
    return limit is not None and limit <= trained_steps and not needed


def share_of_round(objective: ObjectiveSpec, earlier_steps: int, round_size: int) -> int | None:
    """Returns the environment steps that each agent of a synchronous round may train; None without such an objective.

    Args:
        objective: Objective of the tournament.
        earlier_steps: Environment steps of the agents of all earlier rounds.
        round_size: Number of agents of a round.
    """
    left = steps_left(objective, earlier_steps, ())
    return None if left is None else -(-left // round_size)
