"""Decides how many events of a tournament are deleted, and which kinds go first. Pure."""

LEAST_EVENTS = 1_000
"""Smallest limit that can be configured."""
DEFAULT_EVENTS = 100_000
RESULT_KINDS = frozenset(
    {
        "tournament_created",
        "tournament_ending",
        "tournament_completed",
        "tournament_cancelled",
        "tournament_failed",
        "champion_named",
        "candidate_verified",
        "submission_refused",
        "target_not_confirmed",
        "algorithm_left",
    }
)
"""Kinds that explain the result of a tournament; never deleted. `algorithm_left` and `submission_refused` are also the
orchestrator's record of which algorithms have left and how many refusals it has read."""
ASSIGNED = "agent_assigned"
"""The latest event for each agent and pod is never deleted: it is the record of which pods have trained an agent, and
these pods may not verify it."""
FREQUENT_KINDS = frozenset(
    {
        ASSIGNED,
        "agent_drained",
        "evaluation_created",
        "evaluation_assigned",
        "evaluation_finished",
        "evaluation_failed",
        "pod_started",
        "pod_joined",
        "pod_draining",
        "pod_gone",
        "pod_died",
        "pod_terminated",
        "pod_killed",
        "pod_unknown",
        "pod_adopted",
        "lease_adopted",
        "role_stuck",
        "pool_short",
        "storage_fault",
        "storage_recovered",
        "checkpoints_deleted",
        "verification_waits",
    }
)
"""Kinds that recur while a tournament runs; deleted first. All other kinds are deleted only when none of these is
left."""


def excess(count: int, left: int, limit: int) -> int:
    """Returns how many events of a tournament to delete; usually 0, so that deletions are rare and delete many.

    Args:
        count: Number of its events.
        left: Number of events that the previous deletion left; 0: there was none.
        limit: Largest number of events; 0: no limit.
    """
    slack = max(1, limit // 100)
    # If the previous deletion found too few events that may go, the next one waits until there are new ones.
    if not limit or count <= max(limit, left + slack):
        return 0
    return count - (limit - slack)
