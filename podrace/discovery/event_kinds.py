"""Lists the kinds of events that the orchestrator records, with their meanings."""

from collections.abc import Mapping

EVENT_KINDS: Mapping[str, str] = {
    "tournament_created": "A user created the tournament.",
    "tournament_updated": "A user changed the tournament.",
    "tournament_paused": "A user paused the tournament; its pods publish and exit.",
    "tournament_resumed": "A user resumed the tournament.",
    "tournament_ending": "An objective was reached; pods publish and exit.",
    "tournament_completed": "All pods have exited, and the champion is named.",
    "tournament_cancelled": "A user stopped the tournament, or its embedded mesh stopped.",
    "tournament_failed": "The tournament cannot continue; the message says why.",
    "champion_named": "Which candidate is the champion, and why.",
    "pod_started": "A launcher starts a pod: for the minimum of the pool, or because there is free capacity.",
    "pod_joined": "A pod that the orchestrator did not start (launcher `external`) asked for work.",
    "pod_draining": "A pod is asked to publish, complete its assignment and exit; the message says why.",
    "pod_not_started": "The platform could not start a pod, for a reason that may pass; the pool tries again later.",
    "pod_gone": "A pod that was draining has exited; the message repeats why it was drained.",
    "pod_died": "A pod exited without being asked; the message has its last log line.",
    "pod_terminated": "A draining pod did not exit in time and got SIGTERM.",
    "pod_resize_begun": (
        "A pod of another size is started to replace the pod of the incumbent, or one that was larger than the others;"
        " the message says why."
    ),
    "pod_resized": "The new pod trains the agent; the message says for how long nothing was trained. If the agent ended"
    " before that, the new pod gets the next one.",
    "pod_resize_abandoned": "The new pod does not replace the old one; the message says why. The agent continues.",
    "pod_killed": (
        "A pod was killed: it no longer called, its leader did not replace a stuck role, or it was draining and did not"
        " exit after SIGTERM either."
    ),
    "role_stuck": "A role of a pod made no progress within its deadline; the message has the stacks of its threads.",
    "pod_unknown": (
        "A pod is running whose tournament the orchestrator's database does not know; it is not managed, because a"
        " backup may be restored."
    ),
    "pod_adopted": "A pod of a tournament is running that the orchestrator's database did not know; it is kept.",
    "lease_adopted": (
        "The database was restored from a backup, and a pod keeps work that was assigned to it after the backup."
    ),
    "tournament_rebuilt": (
        "The database was lost and had no backup; the message says what the leaderboard knew of the tournament, and"
        " what is lost. It continues when a pod works for it, or when it is resumed."
    ),
    "storage_fault": (
        "Pods wait because the checkpoint store or the leaderboard is full or does not answer. While all wait, the"
        " tournament is paused. Or the orchestrator could not write its database, which pauses every tournament; this"
        " is recorded afterwards."
    ),
    "storage_recovered": "Nothing waits for storage any more.",
    "checkpoints_deleted": (
        "Checkpoints of ended agents, or snapshots, were deleted because of `assignment.tournament_checkpoint_bytes`."
    ),
    "candidate_held": (
        "A candidate would lead, and another pod plays its episodes first (`evaluation.verify`). Until then it is not"
        " on the board."
    ),
    "candidate_verified": "Another pod measured what the candidate states; it may lead.",
    "verification_waits": (
        "No pod may verify the candidate, because only pods that trained its agent are running; the message says what"
        " to do."
    ),
    "submission_refused": (
        "The leaderboard refused a checkpoint because of what it contains, or because another pod measured a lower"
        " score (`NOT_VERIFIED`); `pod_id` is the pod that held the agent."
    ),
    "target_not_confirmed": (
        "A candidate reached the target return, but its evaluation on new episodes did not; the tournament continues."
    ),
    "pool_short": "The pool has fewer pods than its minimum; the message says what is missing.",
    "agent_generated": "The generator made an agent; the message says whether it is fresh, or whose child it is.",
    "agent_assigned": "An agent was given to a pod, with the lease epoch.",
    "agent_finished": "A pod completed the assignment of an agent: its budget is used.",
    "agent_drained": (
        "A pod completed the assignment of an agent early; the message says why. A pod continues the agent. If"
        " pods give it back because of an error, it fails the third time without new environment steps."
    ),
    "agent_failed": (
        "A pod completed the assignment of an agent, because it cannot be trained; or ten pods in a row died while they"
        " trained it."
    ),
    "agent_stopped": "The strategy has no more use for an agent; its last scored checkpoint remains.",
    "algorithm_left": "An algorithm gets no more agents, because its agents fail or by successive halving.",
    "evaluation_created": "An evaluation was queued.",
    "evaluation_assigned": "An evaluation was given to a pod.",
    "evaluation_finished": "A pod completed an evaluation.",
    "evaluation_failed": "An evaluation ended without a result; the message says why.",
    "evaluator_replaced": "The tournament's evaluator plugin failed, and the built-in evaluator is used for a while.",
}
"""Meaning of each kind, in the order of the documentation."""
