"""Reads the tensors that a policy file or a file of test vectors lists, and compares those of a policy with the
hyperparameters of its agent. Pure.

The leaderboard has neither torch nor numpy. It reads the header of the safetensors file (names, types, shapes and
positions), and no numbers. The spaces of the environment are known to pods only: the sizes of the first layer and of
the last one are free, and every other size follows from the hyperparameters. The first hidden layer of a policy on
composite observations consists of one encoder for each entry.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from podrace.policy.tensor_header import read_header

ELEMENT_TYPE = "F32"
"""Type of every tensor of a policy."""
STATISTICS = ("observation_mean", "observation_variance")
TEST_VECTORS = ("observation", "outputs", "action")
"""Tensors that every file of test vectors has."""
HEAD_PARAMETERS = {"log_std": 1, "exploration": 1}
"""Parameters of action heads by name, with their rank."""
GATES = 3
"""Gates of a gated recurrent unit, whose weights are stored together."""

_ENCODER_TORSO = re.compile(r"actor\.encoder\.\d+\.torso\.")

PolicyShape = Mapping[str, Sequence[int]]
"""Shapes of the tensors of a policy by name."""


@dataclass(frozen=True)
class NetworkValues:
    """The hyperparameters that shape the network of a policy."""

    hidden_sizes: Sequence[int]
    """Units of each hidden layer of the actor."""
    torso: bool
    """Whether convolutions come before the hidden layers."""
    recurrent_size: int
    """Size of the recurrent layer between hidden layers and head; 0: none."""
    normalizes: bool
    """Whether observations may be normalized by statistics that are part of the policy."""
    shares_parameters: bool = True
    """Whether the agents of a team have one policy; otherwise every tensor has a leading dimension, the agents."""


def read_shape(data: bytes) -> PolicyShape:
    """Returns the shapes that a policy file lists.

    Raises:
        ValueError: As `read_header`: the file is no safetensors file, for instance, or has tensors of another type than
            float32.
    """
    return {name: entry.shape for name, entry in read_header(data, [ELEMENT_TYPE]).items()}


def check_test_vectors(data: bytes) -> PolicyShape:
    """Returns the shapes that a file of test vectors lists; `PolicyDescription` describes the file.

    Raises:
        ValueError: As `read_header`, or a tensor is missing, or the tensors have different numbers of rows.
    """
    shape = {name: entry.shape for name, entry in read_header(data).items()}
    missing = [name for name in TEST_VECTORS if name not in shape]
    if missing:
        raise ValueError(f"has no tensor {missing[0]!r}")
    rows = {tuple(one[:1]) for one in shape.values()}
    if len(rows) != 1 or () in rows:
        raise ValueError("has tensors of different numbers of rows")
    return shape


def mismatches(shape: PolicyShape, network: NetworkValues) -> Iterator[str]:
    """Yields why a policy cannot belong to an agent with these hyperparameters, in one line each."""
    if not network.shares_parameters:
        counts = {tuple(one[:1]) for one in shape.values()}
        if len(counts) != 1 or counts & {(), (0,)}:
            yield "has tensors of different numbers of agents, and share_parameters is false"
            return
    left = {name: one if network.shares_parameters else one[1:] for name, one in shape.items()}
    mean, variance = (left.pop(name, None) for name in STATISTICS)
    if mean != variance or (mean is not None and len(mean) != 1):
        yield f"{STATISTICS[0]} has the shape {mean}, {STATISTICS[1]} has {variance}"
    if mean is not None and not network.normalizes:
        yield f"has {STATISTICS[0]}, and normalize_observations is false"
    yield from _layers(left, network, None if mean is None or network.torso else mean[0])
    for name, rank in HEAD_PARAMETERS.items():
        if len(left.pop(name, [0] * rank)) != rank:
            yield f"{name} does not have the rank {rank}"
    if left:
        yield f"has tensors that a policy does not have, such as {sorted(left)[0][:64]!r}"


def _layers(left: dict[str, Sequence[int]], network: NetworkValues, inputs: int | None) -> Iterator[str]:
    """Checks and removes the layers of the actor; `inputs` is the size of an observation if it is known."""
    torso = [name for name in left if name.startswith("actor.torso.") or _ENCODER_TORSO.match(name)]
    if bool(torso) != network.torso:
        yield "has convolutions, and torso is 'none'" if torso else "has no convolutions, and torso is set"
    for name in torso:
        del left[name]
    hidden = list(network.hidden_sizes)
    first = left.get("actor.0.weight")
    sizes = [inputs or (first[-1] if first else 0), *hidden]
    if encoders := sum(f"actor.encoder.{index}.0.weight" in left for index in range(len(left))):
        yield from _encoders(left, encoders, hidden)
        sizes = [encoders * hidden[0], *hidden[1:]] if hidden else sizes
    for layer, (before, units) in enumerate(pairwise(sizes)):
        yield from _linear(left, f"actor.{layer}", before, units)
    last, before = f"actor.{len(sizes) - 1}", sizes[-1]
    if size := network.recurrent_size:
        last, before = "actor.output.0", size
        expected = {
            "input_weight": [GATES * size, sizes[-1]],
            "input_bias": [GATES * size],
            "state_weight": [GATES * size, size],
            "state_bias": [GATES * size],
        }
        for name, wanted in expected.items():
            yield from _tensor(left, f"actor.recurrent.{name}", wanted)
    bias = left.get(f"{last}.bias")
    yield from _linear(left, last, before, bias[0] if bias else 0)


def _encoders(left: dict[str, Sequence[int]], count: int, hidden: Sequence[int]) -> Iterator[str]:
    """Checks and removes the encoders of a composite observation, which are the first hidden layer."""
    if not hidden:
        yield "has encoders of entries, and hidden_sizes is empty"
    for index in range(count):
        name = f"actor.encoder.{index}.0"
        weight = left.get(f"{name}.weight") or [0]
        yield from _linear(left, name, weight[-1], hidden[0] if hidden else 0)


def _linear(left: dict[str, Sequence[int]], name: str, inputs: int, units: int) -> Iterator[str]:
    yield from _tensor(left, f"{name}.weight", [units, inputs])
    yield from _tensor(left, f"{name}.bias", [units])


def _tensor(left: dict[str, Sequence[int]], name: str, wanted: Sequence[int]) -> Iterator[str]:
    found = left.pop(name, None)
    if found is None:
        yield f"has no tensor {name!r}; the hyperparameters of its agent require one of the shape {list(wanted)}"
    elif list(found) != list(wanted):
        yield f"{name} has the shape {list(found)}; the hyperparameters of its agent require {list(wanted)}"
