"""Checks spaces, computes their sizes, and draws random actions. Pure."""

import math
from array import array
from collections.abc import Iterator, Sequence
from random import Random

from podrace.agentpod.v1.agentpod_pb2 import Space
from podrace.tensor.v1 import tensor_pb2 as tensors

CODES = {
    tensors.DATA_TYPE_FLOAT32: "f",
    tensors.DATA_TYPE_FLOAT64: "d",
    tensors.DATA_TYPE_INT32: "i",
    tensors.DATA_TYPE_INT64: "q",
    tensors.DATA_TYPE_UINT8: "B",
    tensors.DATA_TYPE_BOOL: "B",
}
"""Codes of `array` by data type; all types of this machine are little-endian."""
CHOSEN = (Space.KIND_DISCRETE, Space.KIND_MULTI_DISCRETE, Space.KIND_MULTI_BINARY)
"""Kinds of actions whose data type is INT64."""


def elements(space: Space) -> int:
    """Returns the number of elements of one value."""
    return math.prod(space.shape)


def agents(observations: Space) -> int:
    """Returns the number of lanes of one environment: one for each of its agents."""
    return max(1, len(observations.agents))


def value_bytes(space: Space) -> int:
    """Returns the number of bytes of one value."""
    return elements(space) * array(CODES[space.data_type]).itemsize


def problems(space: Space, *, action: bool) -> Iterator[str]:
    """Yields what is wrong with a space, each in one clause."""
    name = "action_space" if action else "observation_space"
    if space.kind == Space.KIND_UNSPECIFIED:
        yield f"{name}.kind is not set"
        return
    if space.data_type not in CODES:
        yield f"{name}.data_type is {tensors.DataType.Name(space.data_type)}"
    if space.kind == Space.KIND_COMPOSITE and action:
        yield f"{name}.kind is KIND_COMPOSITE, which only observations have"
    if space.kind == Space.KIND_DISCRETE and (space.choices < 1 or space.shape):
        yield f"{name} is discrete with choices {space.choices} and shape {list(space.shape)}"
    if action and space.kind in CHOSEN and space.data_type != tensors.DATA_TYPE_INT64:
        yield f"{name}.data_type is {tensors.DataType.Name(space.data_type)}, of discrete actions it is INT64"
    if space.kind == Space.KIND_MULTI_DISCRETE and len(space.element_choices) != elements(space):
        yield f"{name} has {elements(space)} elements and {len(space.element_choices)} element_choices"
    if space.kind == Space.KIND_MULTI_DISCRETE and 0 in space.element_choices:
        yield f"{name}.element_choices has a 0"
    for bound in ("low", "high"):
        stated = len(getattr(space, bound))
        if stated not in (0, 1, elements(space)):
            yield f"{name}.{bound} has {stated} numbers for {elements(space)} elements"


def bounds(space: Space) -> list[tuple[float, float]]:
    """Returns the lower and the upper bound of each element."""
    count = elements(space)

    def spread(given: Sequence[float], missing: float) -> list[float]:
        return list(given) if len(given) == count else [given[0] if given else missing] * count

    return list(zip(spread(space.low, -math.inf), spread(space.high, math.inf), strict=True))


def random_actions(space: Space, count: int, random: Random) -> bytes:
    """Draws one action for each lane, as bytes [count, ...]."""
    if space.kind == Space.KIND_DISCRETE:
        return array("q", [random.randrange(space.choices) for _ in range(count)]).tobytes()
    if space.kind == Space.KIND_MULTI_DISCRETE:
        drawn = [random.randrange(choices) for _ in range(count) for choices in space.element_choices]
        return array("q", drawn).tobytes()
    if space.kind == Space.KIND_MULTI_BINARY:
        return array("q", [random.randrange(2) for _ in range(count * elements(space))]).tobytes()
    limits = [
        (max(low, -1.0), min(high, 1.0)) if math.isinf(high - low) else (low, high) for low, high in bounds(space)
    ]
    values = [random.uniform(low, high) for _ in range(count) for low, high in limits]
    code = CODES[space.data_type]
    return array(code, values if code in "fd" else [round(value) for value in values]).tobytes()


def decoded(data: bytes, space: Space) -> "array[float] | array[int]":
    """Returns the elements of values as numbers."""
    found: array[float] | array[int] = array(CODES[space.data_type])
    found.frombytes(data)
    return found
