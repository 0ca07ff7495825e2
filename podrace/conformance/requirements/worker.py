"""Lists the requirements of WorkerService of `podrace.agentpod.v1`, on the plane `grpc`."""

from podrace.conformance.findings import Requirement, by_name
from podrace.conformance.requirements.errors import ERROR_DETAILS

_SERVICE = "WorkerService"
_SLOT = "RolloutSlot"

REQUIREMENTS = by_name(
    [
        Requirement(
            "deadline",
            "Blocks until the slot is full; until then only this worker may access the slot.",
            f"{_SERVICE}.CollectRollout",
            "fill the slot and answer, or end the call with an error",
        ),
        Requirement(
            "opens",
            "Opens a session: makes the environments and the policy network, and answers with the spaces.",
            f"{_SERVICE}.OpenWorker",
            "open the session; --environment names an environment that the worker knows",
        ),
        Requirement(
            "probe",
            "The worker answers with the sum of its elements, which proves that the plane (transport) of this tensor"
            " connects the two processes.",
            "OpenWorkerRequest.probe",
            "read the float64 tensor `probe` by ReadTensors of the address in its `plane_uri`, and answer with its sum",
        ),
        Requirement(
            "spaces",
            "Set of values that an observation or an action can take.",
            "podrace.agentpod.v1.Space",
            "fill in kind, shape, data type and, by its kind, choices or bounds",
        ),
        Requirement(
            "listed-tensors",
            "Name, type and shape of each part of the block, in order.",
            "PolicySpec.tensors",
            "list the parts of the policy with the names and shapes that the comment of PolicySpec states",
        ),
        Requirement(
            "unknown-environment",
            "INVALID_ARGUMENT for an environment that cannot be made",
            f"{_SERVICE}.OpenWorker",
            "refuse an environment that cannot be made with INVALID_ARGUMENT; an exception becomes UNKNOWN",
        ),
        Requirement(
            "collects",
            "Fills one slot with one rollout of one policy version.",
            f"{_SERVICE}.CollectRollout",
            "answer every valid request of the open session",
        ),
        Requirement(
            "own-columns",
            "this worker writes the N columns from `first_environment` on and no others.",
            _SLOT,
            "begin each box at the column `first_environment`",
        ),
        Requirement(
            "rows",
            "observation [T + 1, M, ...] what was acted on; the last row is the observation after the last step",
            _SLOT,
            "write every row of every tensor of the slot, observation T included, before you answer",
        ),
        Requirement(
            "boxes",
            "DATA_LOSS (BAD_DIGEST) if a chunk is damaged. INVALID_ARGUMENT if it does not fit its tensor.",
            "podrace.tensor.v1.TensorService.WriteTensors",
            "send boxes within the tensor, with as many bytes as their sizes say, at most 1 MiB",
        ),
        Requirement(
            "chunk-digest",
            "SHA-256 of `data`, in lower-case hexadecimal.",
            "podrace.tensor.v1.TensorChunk.digest",
            "compute the digest of the bytes of each chunk",
        ),
        Requirement(
            "actions",
            "[T, M] or [T, M, A] float32 if continuous, before clipping and scaling (PolicySpec); else int64",
            f"{_SLOT}, action",
            "store the action of the policy, one of the choices if it is discrete",
        ),
        Requirement(
            "log-prob",
            "logarithm of the probability (density) of that action",
            f"{_SLOT}, log_prob",
            "act with the policy of the request as the comment of PolicySpec describes, and store the logarithm",
        ),
        Requirement(
            "ends",
            "the episode was cut off, for instance by a time limit",
            f"{_SLOT}, truncated",
            "write 0 or 1, and 0 to truncated where the episode terminated",
        ),
        Requirement(
            "final-observation",
            "last observation of the episode; written only where truncated",
            f"{_SLOT}, final_observation",
            "write the last observation of each episode that was cut off",
        ),
        Requirement(
            "finite",
            "DATA_LOSS (NON_FINITE) names the environment and the step that gave a value that is not finite.",
            f"{_SERVICE}.CollectRollout",
            "refuse numbers that are not finite",
        ),
        Requirement(
            "version",
            "Version of the policy that acted.",
            "CollectRolloutResponse.policy_version",
            "repeat `policy.policy_version` of the request",
        ),
        Requirement(
            "steps",
            "Steps taken, over all environments of this worker.",
            "CollectRolloutResponse.environment_steps",
            "report horizon times environments",
        ),
        Requirement(
            "returns",
            "Undiscounted returns of the episodes that finished.",
            "CollectRolloutResponse.episode_returns",
            "report the sum of the rewards of each episode that ended in this rollout, and its length",
        ),
        Requirement(
            "continues",
            "steps one batch of environments with the policy it is given",
            _SERVICE,
            "continue with the next rollout where the last one ended",
        ),
        Requirement(
            "recurrent-state",
            "h is 0 at the first step of an episode. Otherwise it is the state after the previous step, also across"
            " rollouts and policy versions.",
            "PolicySpec, step 4",
            "keep the state of each environment from step to step, write the one before the first step to `state`, and"
            " act with it",
        ),
        Requirement(
            "own-rows",
            "The worker writes the T rows from `first_row` on.",
            f"{_SLOT}, replay memories",
            "begin each box of a replay memory at the row `first_row`, and write every tensor that the slot has",
        ),
        Requirement(
            "last-row",
            "There is no row for the observation after the last step, so the worker writes that observation into its"
            " last row of `final_observation`",
            f"{_SLOT}, replay memories",
            "write the observation after the last step into the last of your rows of `final_observation`",
        ),
        Requirement(
            "greedy-actions",
            "clip(tanh(o) + exploration N(0, 1), -1, 1) values discrete a value for each choice argmax with probability"
            " `exploration` any choice, else argmax",
            "PolicySpec, step 5",
            "act greedily if the part `exploration` of the policy is 0",
        ),
        Requirement(
            "generation",
            "A reader that finds another generation in the block refuses the reference, because the content is no"
            " longer what the reference was made for.",
            "podrace.tensor.v1.TensorRef.generation",
            "read the policy for each rollout, and end the call with an error if ReadTensors fails",
        ),
        Requirement(
            "two-calls",
            "Callers have at most two calls in flight, which are served in order.",
            f"{_SERVICE}.CollectRollout",
            "queue a second rollout until the first one is answered",
        ),
        Requirement(
            "not-open",
            "FAILED_PRECONDITION (NOT_OPEN) if the session is not open, for instance after a restart.",
            f"{_SERVICE}.CollectRollout",
            "answer FAILED_PRECONDITION, so that the learner opens another session; an exception becomes UNKNOWN",
        ),
        Requirement(
            "not-open-reason",
            "FAILED_PRECONDITION: the process that was called does not know this session or group, for instance because"
            " it was restarted. Open the session, or join a group, again.",
            "podrace.error.v1.ERROR_REASON_NOT_OPEN",
            "send a google.rpc.Status with ErrorInfo{reason: ERROR_REASON_NOT_OPEN, domain: podrace} in the trailing"
            " metadata `grpc-status-details-bin`: only by this reason does the learner open the worker again",
        ),
        Requirement(
            "closing",
            "Has no effect on another session.",
            f"{_SERVICE}.CloseWorker",
            "close only the session that is named",
        ),
        Requirement(
            "progress",
            "Does not block, even during a rollout. A worker without this method is not monitored",
            f"{_SERVICE}.GetWorker",
            "answer GetWorker at once, or leave it unimplemented",
        ),
        ERROR_DETAILS,
    ]
)
