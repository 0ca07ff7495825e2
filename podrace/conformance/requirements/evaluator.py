"""Lists the requirements of EvaluatorService of `podrace.agentpod.v1` to a pod that calls a plugin."""

from podrace.conformance.findings import Requirement, by_name
from podrace.conformance.requirements.errors import ERROR_DETAILS

_SERVICE = "EvaluatorService"

REQUIREMENTS = by_name(
    [
        Requirement(
            "deadline",
            "Deadline: for a plugin `evaluation.answer_duration`, at most 1,800 s.",
            f"{_SERVICE}.EvaluatePolicy",
            "answer in time, or give the tournament a longer `evaluation.answer_duration`",
        ),
        Requirement(
            "opens",
            "Opens a session: makes the environments and the policy network.",
            f"{_SERVICE}.OpenEvaluator",
            "open the session; --environment names an environment that the service knows",
        ),
        Requirement(
            "probe",
            "Sum of the elements of the probe as read by the evaluator.",
            "OpenEvaluatorResponse.probe_sum",
            "read the float64 tensor `probe` by ReadTensors of the address in its `plane_uri`, and answer with its sum",
        ),
        Requirement(
            "unknown-environment",
            "INVALID_ARGUMENT for an environment that cannot be made",
            f"{_SERVICE}.OpenEvaluator (same errors as OpenWorker)",
            "make the environment when the session is opened, and refuse one that cannot be made",
        ),
        Requirement(
            "scores",
            "Copies a policy, plays whole episodes with the copy, and answers with the score and the digest of the"
            " copy.",
            f"{_SERVICE}.EvaluatePolicy",
            "answer every valid request of an open session",
        ),
        Requirement(
            "digest",
            "The score, and the digest of the policy that earned it: SHA-256, in lower-case hexadecimal, of the"
            " safetensors file of its tensors, sorted by name.",
            "EvaluatePolicyResponse.evaluation",
            "read the policy of each request, and compute the digest from that copy",
        ),
        Requirement(
            "episodes",
            "Number of episodes to finish.",
            "EvaluatePolicyRequest.episodes",
            "finish at least as many episodes as the request asks for",
        ),
        Requirement(
            "finite",
            "DATA_LOSS (NON_FINITE) for a return that is not finite.",
            f"{_SERVICE}.EvaluatePolicy",
            "answer with DATA_LOSS instead of a score that is not finite",
        ),
        Requirement(
            "mean",
            "Otherwise there are as many as `episodes`, and their mean is `mean_return`.",
            "podrace.checkpoint.v1.Evaluation.episode_returns",
            "report the return of each episode and their mean, or no returns of episodes at all",
        ),
        Requirement(
            "variance",
            "Unbiased variance of the return between episodes; 0 for a single episode.",
            "podrace.checkpoint.v1.Evaluation.variance",
            "divide by the number of episodes minus 1; the standard error of the score follows from it",
        ),
        Requirement(
            "same-episodes",
            "An episode is named by the seed and its number: episode i of a seed is the same for every policy and"
            " however many episodes are played in one call.",
            "EvaluatePolicyRequest.seed",
            "seed each episode with the seed and its number, or report no `episode_returns` and an `unpaired_reason`",
        ),
        Requirement(
            "sessions",
            "Opening a session must not affect the others, and calls of several sessions may run at the same time.",
            f"{_SERVICE}, Sessions",
            "keep the state of each session by its name",
        ),
        Requirement(
            "closing",
            "Has no effect on another session.",
            f"{_SERVICE}.CloseEvaluator",
            "drop only the session that is named",
        ),
        Requirement(
            "not-open",
            "FAILED_PRECONDITION (NOT_OPEN) if the session is not open.",
            f"{_SERVICE}.EvaluatePolicy",
            "answer FAILED_PRECONDITION, so that the pod opens another session; an exception becomes UNKNOWN",
        ),
        Requirement(
            "generation",
            "A reader that finds another generation in the block refuses the reference, because the content is no"
            " longer what the reference was made for.",
            "podrace.tensor.v1.TensorRef.generation",
            "read the policy for each request, and end the call with an error if ReadTensors fails",
        ),
        Requirement(
            "progress",
            "Does not block, even during an evaluation. An evaluator without this method is not monitored",
            f"{_SERVICE}.GetEvaluator",
            "answer GetEvaluator at once, or leave it unimplemented",
        ),
        ERROR_DETAILS,
    ]
)
