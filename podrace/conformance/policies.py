"""Makes small policies, and computes their outputs and digests in Python. Pure."""

import hashlib
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

from podrace.agentpod.v1.agentpod_pb2 import PolicySpec
from podrace.tensor.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec

HIDDEN = (8, 8)
Parameters = Mapping[str, Sequence[float]]
"""Elements of the parts of a policy by name, in C order."""


def network() -> PolicySpec:
    """Returns the network of the examined policies, without its tensors."""
    return PolicySpec(hidden_sizes=HIDDEN, activation="tanh", normalize_observations=True, head="stochastic")


def listed(policy: PolicySpec, inputs: int, outputs: int, *, continuous: bool) -> PolicySpec:
    """Returns a network with its tensors."""
    shapes = {"observation_mean": [inputs], "observation_variance": [inputs]}
    for layer, (before, after) in enumerate(pairwise([inputs, *policy.hidden_sizes, outputs])):
        shapes |= {f"actor.{layer}.weight": [after, before], f"actor.{layer}.bias": [after]}
    shapes |= {"log_std": [outputs]} if continuous else {}
    found = PolicySpec()
    found.CopyFrom(policy)
    for name, shape in shapes.items():
        found.tensors.add(name=name, shape=shape, data_type=DATA_TYPE_FLOAT32, layout_version=1)
    return found


def draw(tensors: Sequence[TensorSpec], seed: int) -> dict[str, "array[float]"]:
    """Draws the parameters of a policy; variances are positive."""
    random = Random(seed)
    found = {}
    for spec in tensors:
        low = 0.5 if spec.name == "observation_variance" else -0.5
        found[spec.name] = array("f", [random.uniform(low, low + 1.0) for _ in range(math.prod(spec.shape))])
    return found


def block_bytes(parameters: Mapping[str, "array[float]"]) -> bytes:
    """Returns the block named `policy`: the parts in their order, without gaps."""
    return b"".join(part.tobytes() for part in parameters.values())


def digest(tensors: Sequence[TensorSpec], parameters: Mapping[str, "array[float]"]) -> str:
    """Returns the SHA-256 of the safetensors file of a policy, as `EvaluatePolicyResponse.evaluation` describes it."""
    shapes = {spec.name: list(spec.shape) for spec in tensors}
    header, body = {}, b""
    for name in sorted(shapes):
        data = parameters[name].tobytes()
        header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return hashlib.sha256(len(text).to_bytes(8, "little") + text + body).hexdigest()


def outputs(parameters: Parameters, layers: int, observation: Sequence[float]) -> list[float]:
    """Returns the outputs of the network for one observation (steps 1 and 3 of PolicySpec)."""
    means, variances = parameters["observation_mean"], parameters["observation_variance"]
    scaled = zip(observation, means, variances, strict=True)
    x = [max(-10.0, min(10.0, (value - mean) / math.sqrt(variance + 1e-8))) for value, mean, variance in scaled]
    for layer in range(layers):
        weight, bias = parameters[f"actor.{layer}.weight"], parameters[f"actor.{layer}.bias"]
        width = len(x)
        x = [
            sum(w * v for w, v in zip(weight[row * width : (row + 1) * width], x, strict=True)) + bias[row]
            for row in range(len(bias))
        ]
        x = [math.tanh(value) for value in x] if layer < layers - 1 else x
    return x


def log_prob_discrete(logits: Sequence[float], action: int) -> float:
    """Returns the logarithm of the probability of a choice."""
    largest = max(logits)
    return logits[action] - largest - math.log(sum(math.exp(logit - largest) for logit in logits))


def log_prob_continuous(means: Sequence[float], log_std: Sequence[float], action: Sequence[float]) -> float:
    """Returns the logarithm of the density of an action."""
    terms = zip(means, log_std, action, strict=True)
    return sum(-0.5 * ((a - m) / math.exp(s)) ** 2 - s - 0.5 * math.log(2 * math.pi) for m, s, a in terms)
