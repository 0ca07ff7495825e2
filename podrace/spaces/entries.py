"""Flattens composite observations (Dict and Tuple of Gymnasium, any nesting) into one row of numbers.

A composite observation is one tensor on every plane, in every rollout and in every replay memory. Its entries lie one
after another in that row. The network splits the row again, and encodes each entry separately.

    entries = entries_of(space)
    row = flattened(entries, {"position": position, "items": 3, "action_mask": mask})
    views = split(entries, row)

Does not import torch, and neither do the processes that step environments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

VECTOR, BYTES, ONE_HOT, FLAGS, MASK = "vector", "bytes", "one_hot", "flags", "mask"
ENCODINGS = (VECTOR, BYTES, ONE_HOT, FLAGS, MASK)
MASK_KEY = "action_mask"
"""Key of the entry that says which actions are valid (the convention of Gymnasium and PettingZoo)."""
MOST_ENTRIES = 256
"""Most entries of one observation."""


class EntryError(Exception):
    """An observation does not have the entries that its space states; the text completes `an observation whose ...`."""


@dataclass(frozen=True)
class Entry:
    """One part of a composite observation."""

    name: str
    """Its key; keys of nested spaces are joined by dots, and the elements of a Tuple are numbered from 0."""
    encoding: str
    """How it becomes numbers. `vector`: the elements as float32, which the network may normalize. `bytes`: uint8, which
    the network divides by 255; with three dimensions an image. `one_hot`: for each element a 1 at the place of its
    value. `flags`: 0 or 1 for each element. `mask`: 1 for each action that is valid, which is not an input of the
    network."""
    shape: tuple[int, ...]
    """Shape in which the environment returns it; () for one number."""
    choices: tuple[int, ...] = ()
    """Only of `one_hot`: number of values of each element in C order."""
    first: tuple[int, ...] = ()
    """Only of `one_hot`: smallest value of each element."""

    @property
    def size(self) -> int:
        """Number of elements in the row."""
        return sum(self.choices) if self.encoding == ONE_HOT else prod(self.shape)


def problem_of(entries: Sequence[Entry], elements: int) -> str:
    """Returns what is wrong with the entries of a row of so many elements, as `has ...`; empty if they are usable."""
    masks = [entry for entry in entries if entry.encoding == MASK]
    if not entries or len(entries) > MOST_ENTRIES or len(masks) == len(entries) or len(masks) > 1:
        return f"has {len(entries)} entries and {len(masks)} of them masks: expected 1 to {MOST_ENTRIES}, and one mask"
    if len({entry.name for entry in entries}) != len(entries):
        return "has several entries with one name"
    for entry in entries:
        if entry.encoding not in ENCODINGS:
            return f"has an entry with the encoding {entry.encoding[:64]!r}: this build knows {', '.join(ENCODINGS)}"
        counts = prod(entry.shape) if entry.encoding == ONE_HOT else 0
        if (len(entry.choices), len(entry.first)) != (counts, counts) or entry.size < 1:
            return f"has choices of {len(entry.choices)} elements in the entry {entry.name[:64]!r}, expected {counts}"
    if width(entries) != elements:
        return f"has {elements} elements, but its entries have {width(entries)}"
    return ""


def columns(entries: Sequence[Entry]) -> Iterator[tuple[Entry, slice]]:
    """Yields each entry with its columns in the row."""
    begin = 0
    for entry in entries:
        yield entry, slice(begin, begin + entry.size)
        begin += entry.size


def width(entries: Sequence[Entry]) -> int:
    """Returns the length of the row."""
    return sum(entry.size for entry in entries)


def mask_columns(entries: Sequence[Entry]) -> slice | None:
    """Returns the columns of the action mask; None if there is none."""
    return next((place for entry, place in columns(entries) if entry.encoding == MASK), None)


def row_type(entries: Sequence[Entry]) -> np.dtype[Any]:
    """Returns the type of the row: uint8 if all entries fit, which is a quarter of the memory; else float32."""
    encodings = {entry.encoding for entry in entries}
    return np.dtype(np.uint8 if BYTES in encodings and VECTOR not in encodings else np.float32)


def flattened(entries: Sequence[Entry], observation: Any, lanes: int | None = None) -> NDArray[Any]:
    """Returns the row of an observation, or the rows of a batch.

    Args:
        entries: Of the space.
        observation: As the environment returns it: nested mappings and sequences.
        lanes: N of a batch, where each part has one more dimension in front; None for a single observation.

    Returns:
        [D], or [N, D].

    Raises:
        EntryError: An entry is absent, or has another shape or an impossible value.
    """
    leading = () if lanes is None else (lanes,)
    rows = np.zeros((*leading, width(entries)), row_type(entries))
    for entry, place in columns(entries):
        value = np.asarray(_looked_up(observation, entry.name))
        if value.shape != (*leading, *entry.shape):
            raise EntryError(
                f"entry {entry.name!r} has the shape {list(value.shape)} instead of {[*leading, *entry.shape]}"
            )
        part = value.reshape(*leading, -1)
        if entry.encoding == ONE_HOT:
            _set_ones(rows[..., place], part, entry)
        else:
            rows[..., place] = part
    return rows


def leading(entries: Sequence[Entry], observation: Any) -> int | None:
    """Returns N of a batch of observations, whose parts have one more dimension in front; None for a single one.

    Raises:
        EntryError: The first entry is absent.
    """
    value = np.asarray(_looked_up(observation, entries[0].name))
    return len(value) if value.ndim == len(entries[0].shape) + 1 else None


def _looked_up(observation: Any, name: str) -> Any:
    for key in name.split("."):
        if isinstance(observation, Mapping):
            if key not in observation:
                raise EntryError(f"entry {name!r} is absent")
            observation = observation[key]
        elif isinstance(observation, Sequence) and key.isdecimal() and int(key) < len(observation):
            observation = observation[int(key)]
        else:
            raise EntryError(f"entry {name!r} is absent")
    return observation


def _set_ones(rows: NDArray[Any], values: NDArray[Any], entry: Entry) -> None:
    """Writes ones at the places of `values` [..., elements] into zeros [..., size]."""
    chosen = values.astype(np.int64) - np.array(entry.first, np.int64)
    if (chosen < 0).any() or (chosen >= np.array(entry.choices)).any():
        raise EntryError(f"entry {entry.name!r} has the value {values.tolist()}, which its space does not contain")
    starts = np.concatenate(([0], np.cumsum(entry.choices)[:-1])).astype(np.int64)
    np.put_along_axis(rows, chosen + starts, 1, -1)


def split(entries: Sequence[Entry], rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Returns the entries of rows [..., D] by name, in the shape in which the environment returns them."""
    found = {}
    for entry, place in columns(entries):
        part = rows[..., place]
        if entry.encoding == ONE_HOT:
            ends = np.cumsum(entry.choices)[:-1]
            part = np.stack([each.argmax(-1) for each in np.split(part, ends, -1)], -1) + np.array(entry.first)
        found[entry.name] = part.reshape((*rows.shape[:-1], *entry.shape))
    return found
