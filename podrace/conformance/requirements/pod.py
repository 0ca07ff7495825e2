"""Lists the requirements of a pod to the orchestrator, the leaderboard and the checkpoint store that it calls."""

from podrace.conformance.findings import Requirement, by_name

_ORCHESTRATOR = "OrchestratorService"

REQUIREMENTS = by_name(
    [
        Requirement(
            "deadline",
            "AcquireAssignment -> (train) -> RenewAssignment ... -> CompleteAssignment, then AcquireAssignment again.",
            _ORCHESTRATOR,
            "make these calls in this order, and return for the next assignment when one has ended",
        ),
        Requirement(
            "bounds",
            "A service refuses a request with INVALID_ARGUMENT if a field is out of bounds",
            "podrace.bounds.v1.bounds, an option of the fields",
            "keep each field within its bounds, which can be read from the protos or the descriptors",
        ),
        Requirement(
            "incarnation",
            "Identifies this run of the pod. It is a new value each time the process of the leader starts.",
            "AcquireAssignmentRequest.incarnation",
            "draw a new incarnation at each start",
        ),
        Requirement(
            "retry-after",
            "There is no work now; ask again after this time.",
            "AcquireAssignmentResponse.retry_after",
            "wait for `retry_after` before the next call",
        ),
        Requirement(
            "pod-token",
            "Token to send from now on as `authorization: Bearer TOKEN`, with calls to the orchestrator and"
            " the leaderboard.",
            "AcquireAssignmentResponse.pod_token",
            "send the newest `pod_token` in the metadata of every call",
        ),
        Requirement(
            "renews",
            "Called by the leader of the pod every third of `lease_duration`.",
            f"{_ORCHESTRATOR}.RenewAssignment",
            "renew in a separate thread or process, also while you train, evaluate and publish",
        ),
        Requirement(
            "lease-token",
            "`lease_token` of the assignment, or of the last renewal that had one.",
            "RenewAssignmentRequest.lease_token",
            "replace the token whenever a renewal returns one, and send it with every call that has the field",
        ),
        Requirement(
            "epoch",
            "Lease epoch of the assignment.",
            "RenewAssignmentRequest.lease_epoch",
            "repeat the epoch of the assignment in every call for it",
        ),
        Requirement(
            "progress",
            "Environment steps the agent has taken, including those under earlier leases.",
            "Progress.environment_steps",
            "count the steps of the agent, and report them with each renewal",
        ),
        Requirement(
            "finishes",
            "The agent has used up its budget, or the evaluation succeeded.",
            "Outcome.OUTCOME_FINISHED",
            "complete as FINISHED after the steps of `assignment_environment_steps`, which are stated with the agent",
        ),
        Requirement(
            "submits",
            "Called by the leader of a pod after it has published the checkpoint.",
            "UpdaterService.SubmitCandidate",
            "publish a scored checkpoint and submit it before the assignment is completed",
        ),
        Requirement(
            "completes-once",
            "Answers once the outcome is durable; a repeat has no further effect.",
            f"{_ORCHESTRATOR}.CompleteAssignment",
            "repeat CompleteAssignment after UNAVAILABLE, with the same `request_id`",
        ),
        Requirement(
            "manifest",
            "was not scored, is not the agent's, or contradicts the specification or itself",
            "UpdaterService.SubmitCandidate (BAD_CHECKPOINT)",
            "copy agent, algorithm, hyperparameters, seed and lease epoch of the assignment into the manifest",
        ),
        Requirement(
            "canonical-json",
            "Writers must use this form.",
            "podrace.checkpoint.v1.Manifest",
            "write manifests as canonical JSON, version 1",
        ),
        Requirement(
            "parts-first",
            "Writers put parts before the manifest that lists them, and the manifest before the pointer that names it.",
            "podrace.checkpoint.v1.Part",
            "store all parts, then the manifest, then swap the pointer, then submit",
        ),
        Requirement(
            "scored-policy",
            "It must equal the digest of that part in the manifest.",
            "podrace.checkpoint.v1.Evaluation.policy_digest",
            "score exactly the policy that is published",
        ),
        Requirement(
            "yields",
            "Publish a checkpoint, complete the assignment as DRAINED, and ask for work again",
            "Directive.DIRECTIVE_YIELD",
            "publish the state as it is, complete as DRAINED, and call AcquireAssignment",
        ),
        Requirement(
            "stops",
            "complete the assignment as STOPPED without publishing again, and ask for other work.",
            "Directive.DIRECTIVE_STOP",
            "complete as STOPPED at once, and call AcquireAssignment",
        ),
        Requirement(
            "cancels",
            "Stop without publishing.",
            "Directive.DIRECTIVE_CANCEL",
            "give the assignment up without another checkpoint",
        ),
        Requirement(
            "stale",
            "FAILED_PRECONDITION (STALE_EPOCH) if the agent has since been assigned to another pod: stop without"
            " publishing.",
            f"{_ORCHESTRATOR}.RenewAssignment",
            "neither publish nor submit nor complete after STALE_EPOCH: another pod trains the agent",
        ),
        Requirement(
            "evaluates",
            "Result of a successful evaluation.",
            "CompleteAssignmentRequest.evaluation",
            "score the policy of the checkpoint in as many episodes as the work names, state the digest of the policy"
            " that you scored, and complete as FINISHED",
        ),
        Requirement(
            "unknown-work",
            "A pod that knows none of these completes the assignment as DRAINED.",
            "Assignment.work",
            "complete work that you do not know as DRAINED",
        ),
        Requirement(
            "drain",
            "Exit: the pool shrinks, or the tournament has ended.",
            "AcquireAssignmentResponse.drain",
            "exit, and make no other call",
        ),
        Requirement(
            "unknown-directive",
            "A pod treats a value that it does not know, UNSPECIFIED included, as DRAIN",
            "Directive",
            "treat an unknown directive as DIRECTIVE_DRAIN: publish, complete as DRAINED, exit",
        ),
    ]
)
