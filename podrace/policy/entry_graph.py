"""Adds to an ONNX graph the encoders of composite observations, action masks, and actions of several elements."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from podrace.checkpoint.v1.policy_pb2 import PolicyDescription, SpaceDescription, SpaceEntry
from podrace.errors import InvalidArgument
from podrace.policy.onnx_writer import INT64, GraphWriter
from podrace.spaces.entries import BYTES, MASK, VECTOR, Entry, columns, mask_columns, problem_of

MASKED = -1e8
"""Output of an invalid action."""

Encode = Callable[[str, str, tuple[int, ...]], str]
"""(name of the encoder, value, shape of an image; () for other entries) -> the encoded value."""
Normalize = Callable[[str, slice], str]
"""(value, its columns in the row) -> the normalized value."""


def entries_of(space: SpaceDescription) -> tuple[Entry, ...]:
    """Returns the entries of a described observation space; () if it is not composite.

    Raises:
        InvalidArgument: They do not fit each other or the space.
    """
    if space.kind != "composite":
        return ()
    entries = tuple(map(_entry, space.entries))
    if problem := problem_of(entries, prod(space.shape)):
        raise InvalidArgument(f"a composite observation {problem}")
    return entries


def _entry(entry: SpaceEntry) -> Entry:
    return Entry(entry.name, entry.encoding, tuple(entry.shape), tuple(entry.choices), tuple(entry.first))


def columns_of(writer: GraphWriter, x: str, begin: int, end: int) -> str:
    """Adds a slice of the columns of x [batch, D]."""
    first, last, axis = (writer.constant("column", np.array([one], np.int64)) for one in (begin, end, 1))
    return writer.node("Slice", x, first, last, axis)


def encoded(
    writer: GraphWriter, description: PolicyDescription, row: str, normalize: Normalize | None, encode: Encode
) -> str:
    """Adds the scaling and the encoders of all entries but the mask; returns their outputs side by side.

    Args:
        writer: Of the graph.
        description: Of the policy.
        row: The observation [batch, D] as float32.
        normalize: Of vectors; None: they are unchanged.
        encode: Adds one encoder.
    """
    features: list[str] = []
    for entry, place in columns(entries_of(description.observation_space)):
        if entry.encoding == MASK:
            continue
        x = _scaled(writer, row, entry, place, normalize)
        is_image = description.torso != "none" and entry.encoding == BYTES and len(entry.shape) == 3
        features.append(encode(f"actor.encoder.{len(features)}", x, entry.shape if is_image else ()))
    return writer.node("Concat", *features, axis=1)


def scaled(writer: GraphWriter, description: PolicyDescription, row: str, normalize: Normalize | None) -> str:
    """Adds the scaling of all entries, as for `encoded`; returns the whole row [batch, D], with the mask."""
    entries = columns(entries_of(description.observation_space))
    return writer.node("Concat", *(_scaled(writer, row, *one, normalize) for one in entries), axis=1)


def _scaled(writer: GraphWriter, row: str, entry: Entry, place: slice, normalize: Normalize | None) -> str:
    x = columns_of(writer, row, place.start, place.stop)
    if entry.encoding == BYTES:
        return writer.node("Mul", x, writer.constant("pixel_scale", np.float32(1.0 / 255.0).reshape(1)))
    return normalize(x, place) if entry.encoding == VECTOR and normalize else x


def masked(writer: GraphWriter, description: PolicyDescription, outputs: str) -> str:
    """Replaces the outputs of invalid actions by MASKED, if the observation has an action mask."""
    place = mask_columns(entries_of(description.observation_space))
    if place is None:
        return outputs
    flags = writer.node("Cast", columns_of(writer, "observation", place.start, place.stop), to=1)
    valid = writer.node("Greater", flags, writer.constant("none", np.zeros(1, np.float32)))
    worst = writer.constant("masked", np.array([MASKED], np.float32))
    if description.head != "dueling":
        return writer.node("Where", valid, outputs, worst)
    advantages = columns_of(writer, outputs, 1, 1 + place.stop - place.start)
    values = writer.node("Where", valid, advantages, worst)
    return writer.node("Concat", columns_of(writer, outputs, 0, 1), values, axis=1)


def choices(writer: GraphWriter, space: SpaceDescription, outputs: str) -> str:
    """Adds the actions of a multi-discrete or a multi-binary space, without exploration."""
    if space.kind == "multi_binary":
        positive = writer.node("Greater", outputs, writer.constant("even", np.zeros(1, np.float32)))
        action = writer.node("Cast", positive, to=INT64)
    else:
        parts: list[str] = []
        begin = 0
        for count in space.element_choices:
            own = columns_of(writer, outputs, begin, begin + count)
            parts.append(writer.node("ArgMax", own, axis=1, keepdims=1))
            begin += count
        action = writer.node("Concat", *parts, axis=1)
    return writer.node("Reshape", action, writer.constant("shape", np.array([-1, *space.shape], np.int64)))


def most_choices(space: SpaceDescription) -> int:
    """Returns the largest number of choices of an element of an action that is not continuous."""
    return 2 if space.kind == "multi_binary" else max((int(space.choices), *space.element_choices))


def sizes(space: SpaceDescription) -> Sequence[int]:
    """Returns the number of outputs of each element of a discrete or multi-discrete action."""
    return list(space.element_choices) or [int(space.choices)]
