"""Lists the requirements of `podrace.simulator.v1`."""

from podrace.conformance.findings import Requirement, by_name
from podrace.conformance.requirements.errors import ERROR_DETAILS

_STREAM = "SimulatorService.StreamSteps"
_STEPPED = "StreamStepsResponse.Stepped"

REQUIREMENTS = by_name(
    [
        Requirement(
            "deadline",
            "Deadline for the response to `open`: 110 s; to any other request: 60 s.",
            _STREAM,
            "answer every request, or end the stream with an error",
        ),
        Requirement(
            "describes",
            "Describes one simulator: its spaces and what the service offers.",
            "SimulatorService.GetSimulator",
            "answer with the spaces of the simulator; --id and --option name another one",
        ),
        Requirement(
            "spaces",
            "Set of values that an observation or an action can take.",
            "podrace.agentpod.v1.Space",
            "fill in kind, shape, data type and, by its kind, choices or bounds",
        ),
        Requirement(
            "same-facts",
            "workers receive the same facts when they open a stream",
            "SimulatorService.GetSimulator",
            "describe a simulator the same way in GetSimulator and Opened",
        ),
        Requirement(
            "unknown-simulator",
            "INVALID_ARGUMENT for an id, an option or a value that cannot be used.",
            "SimulatorService.GetSimulator",
            "refuse unknown ids and options with INVALID_ARGUMENT and say what is allowed",
        ),
        Requirement(
            "refusals",
            "INVALID_ARGUMENT for an environment that cannot be made, and for a request that is unknown, out of"
            " order or of the wrong size",
            _STREAM,
            "end the stream with INVALID_ARGUMENT; an exception of your own becomes UNKNOWN",
        ),
        Requirement(
            "limit",
            "RESOURCE_EXHAUSTED for more environments or streams than the service allows",
            _STREAM,
            "compare `open.count` with the `maximum_environments` that GetSimulator states",
        ),
        Requirement(
            "steps",
            "act with step 1, 2.. -> stepped with the same step",
            _STREAM,
            "answer each act with one step, whose number is that of the act; 0 after a reset",
        ),
        Requirement(
            "observation",
            "[N, ...] in C order, little-endian, of the data type of the observation space: the observation to act on"
            " next.",
            f"{_STEPPED}.observation",
            "send N observations of the shape and the data type that Opened states",
        ),
        Requirement(
            "observation-values",
            "DATA_LOSS: an observation, a reward, a loss, a gradient or a score is not finite.",
            "podrace.error.v1.ERROR_REASON_NON_FINITE",
            "send finite observations and rewards only",
        ),
        Requirement(
            "reset-only-observation",
            "The result of a reset has only the observation.",
            _STEPPED,
            "leave the other fields of the answer to a reset empty",
        ),
        Requirement("reward", "[N] float32.", f"{_STEPPED}.reward", "send one little-endian float32 for each lane"),
        Requirement(
            "terminated",
            "[N] bool, one byte each: the episode reached a terminal state, so there is no future return.",
            f"{_STEPPED}.terminated",
            "send one byte, 0 or 1, for each lane",
        ),
        Requirement(
            "truncated",
            "[N] bool, one byte each: the episode was cut off, for instance by a time limit. False wherever"
            " `terminated` is true.",
            f"{_STEPPED}.truncated",
            "send one byte, 0 or 1, for each lane, and 0 where the episode terminated",
        ),
        Requirement(
            "final-lanes",
            "The E lanes whose episode has just ended, ascending.",
            f"{_STEPPED}.final_lanes",
            "list each lane in which terminated or truncated is 1, once and in ascending order",
        ),
        Requirement(
            "final-observation",
            "[E, ...]: the last observation of each of these episodes.",
            f"{_STEPPED}.final_observation",
            "send one observation for each of the final lanes: the one before the lane was reset",
        ),
        Requirement(
            "reset-within-step",
            "In a lane whose episode has just ended, this is the first observation of the next episode.",
            f"{_STEPPED}.observation",
            "reset a lane in the step that ends its episode, and send its last observation as final_observation",
        ),
        Requirement(
            "lanes-differ",
            "Seed of the states in which episodes begin, later episodes included. Lanes differ from each other.",
            "StreamStepsRequest.Reset.seed",
            "derive a seed for each lane from the seed of the request and the number of the lane",
        ),
        Requirement(
            "reproducible",
            "Whether the same seed and the same actions give the same steps.",
            "GetSimulatorResponse.reproducible",
            "derive all randomness from the seed of the reset, or state that the simulator is not reproducible",
        ),
        Requirement(
            "own-environments",
            "The environments belong to the stream and are closed with it.",
            _STREAM,
            "make the environments of a stream when it opens, and share no state between streams",
        ),
        Requirement(
            "message-size",
            "The byte fields of one message hold at most 1 MiB together; if there is more, further messages"
            " continue the fields of the ones before.",
            _STEPPED,
            "cut a longer step into several messages, all but the last with `more` set",
        ),
        Requirement(
            "split-actions",
            "At most 1 MiB in one message; the rest follows in the next messages.",
            "StreamStepsRequest.Act.action",
            "put the pieces of an action with `more` together before the step",
        ),
        Requirement(
            "report",
            "report -> reported at any time after open",
            _STREAM,
            "answer a report at any time, with nothing in it if the simulator has no measures",
        ),
        Requirement(
            "report-lengths",
            "N numbers, one for each lane, of the first episode that it has finished since the last reset; NaN for"
            " a lane that has not finished any.",
            "StreamStepsResponse.Reported.episode_metrics",
            "report one number for each lane; series and labels of one report have the same length",
        ),
        Requirement(
            "unseen-memory",
            "Absent if the service cannot see the memory: steps continue to travel in messages.",
            "StreamStepsResponse.Shared.probe_sum",
            "answer an offer of memory that you cannot map without a sum, and continue with messages",
        ),
        Requirement(
            "closing",
            "The stream lives until the caller closes its side or an error ends it.",
            _STREAM,
            "end the stream with OK when the caller closes its side",
        ),
        ERROR_DETAILS,
    ]
)
