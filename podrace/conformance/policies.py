"""Makes small policies, and computes their outputs and digests in Python. Pure."""

import hashlib
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

from podrace.agentpod.v1.agentpod_pb2 import PolicySpec, Space
from podrace.tensor.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec

HIDDEN = (8, 8)
Parameters = Mapping[str, Sequence[float]]
"""Elements of the parts of a policy by name, in C order."""


def network(recurrent_size: int = 0, head: str = "stochastic") -> PolicySpec:
    """Returns the network of the examined policies, without its tensors."""
    return PolicySpec(
        hidden_sizes=HIDDEN,
        activation="tanh",
        normalize_observations=True,
        head=head,
        recurrent_size=recurrent_size,
    )


def listed(policy: PolicySpec, inputs: int, outputs: int, *, continuous: bool) -> PolicySpec:
    """Returns a network with its tensors."""
    shapes = {"observation_mean": [inputs], "observation_variance": [inputs]}
    size, widths = policy.recurrent_size, [inputs, *policy.hidden_sizes]
    for layer, (before, after) in enumerate(pairwise(widths if size else [*widths, outputs])):
        shapes |= {f"actor.{layer}.weight": [after, before], f"actor.{layer}.bias": [after]}
    if size:
        for part, before in (("input", widths[-1]), ("state", size)):
            shapes |= {f"actor.recurrent.{part}_weight": [3 * size, before], f"actor.recurrent.{part}_bias": [3 * size]}
        shapes |= {"actor.output.0.weight": [outputs, size], "actor.output.0.bias": [outputs]}
    if policy.head in ("values", "deterministic"):
        shapes |= {"exploration": [1]}
    elif continuous:
        shapes |= {"log_std": [outputs]}
    found = PolicySpec()
    found.CopyFrom(policy)
    for name, shape in shapes.items():
        found.tensors.add(name=name, shape=shape, data_type=DATA_TYPE_FLOAT32, layout_version=1)
    return found


def draw(tensors: Sequence[TensorSpec], seed: int) -> dict[str, "array[float]"]:
    """Draws the parameters of a policy; variances are positive, and nothing is explored."""
    random = Random(seed)
    found = {}
    for spec in tensors:
        low = 0.5 if spec.name == "observation_variance" else -0.5
        found[spec.name] = array("f", [random.uniform(low, low + 1.0) for _ in range(math.prod(spec.shape))])
        if spec.name == "exploration":
            found[spec.name][0] = 0.0
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
    x = _normalized(parameters, observation)
    for layer in range(layers):
        x = _layer(parameters, f"actor.{layer}.", x)
        x = [math.tanh(value) for value in x] if layer < layers - 1 else x
    return x


def recurrent_outputs(
    parameters: Parameters, layers: int, observation: Sequence[float], state: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Returns the outputs of a recurrent network and its next state (steps 1, 3 and 4 of PolicySpec)."""
    x = _normalized(parameters, observation)
    for layer in range(layers):
        x = [math.tanh(value) for value in _layer(parameters, f"actor.{layer}.", x)]
    size = len(state)
    given = _layer(parameters, "actor.recurrent.input_", x)
    kept = _layer(parameters, "actor.recurrent.state_", state)
    following = []
    for i in range(size):
        r = _sigmoid(given[i] + kept[i])
        z = _sigmoid(given[size + i] + kept[size + i])
        n = math.tanh(given[2 * size + i] + r * kept[2 * size + i])
        following.append((1.0 - z) * n + z * state[i])
    return _layer(parameters, "actor.output.0.", following), following


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _normalized(parameters: Parameters, observation: Sequence[float]) -> list[float]:
    means, variances = parameters["observation_mean"], parameters["observation_variance"]
    scaled = zip(observation, means, variances, strict=True)
    return [max(-10.0, min(10.0, (value - mean) / math.sqrt(variance + 1e-8))) for value, mean, variance in scaled]


def _layer(parameters: Parameters, prefix: str, x: Sequence[float]) -> list[float]:
    weight, bias = parameters[f"{prefix}weight"], parameters[f"{prefix}bias"]
    width = len(x)
    return [
        sum(w * v for w, v in zip(weight[row * width : (row + 1) * width], x, strict=True)) + bias[row]
        for row in range(len(bias))
    ]


def log_prob(space: Space, outputs: Sequence[float], parameters: Parameters, action: Sequence[float]) -> float:
    """Returns the logarithm of the probability (density) of an action of the head `stochastic`."""
    if space.kind == Space.KIND_DISCRETE:
        return log_prob_discrete(outputs, int(action[0]))
    return log_prob_continuous(outputs, parameters["log_std"], action)


def log_prob_discrete(logits: Sequence[float], action: int) -> float:
    """Returns the logarithm of the probability of a choice."""
    largest = max(logits)
    return logits[action] - largest - math.log(sum(math.exp(logit - largest) for logit in logits))


def log_prob_continuous(means: Sequence[float], log_std: Sequence[float], action: Sequence[float]) -> float:
    """Returns the logarithm of the density of an action."""
    terms = zip(means, log_std, action, strict=True)
    return sum(-0.5 * ((a - m) / math.exp(s)) ** 2 - s - 0.5 * math.log(2 * math.pi) for m, s, a in terms)
