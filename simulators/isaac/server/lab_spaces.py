"""Makes rows of numbers of what Isaac Lab observes, and describes its spaces to the client.

An entry is `[name, encoding, shape, choices]`. The encodings are those of podrace.spaces.entries, which cannot be
imported here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

MASK = "action_mask"


def entries_of(space: Any, choices: int, path: Any = ()) -> Any:
    """Returns the entries of an observation of several parts, in its order; keys of nested ones are joined by dots.

    Args:
        space: The space of the observation.
        choices: Number of choices of all elements of an action; 0: actions are continuous, and nothing masks them.
        path: Keys that lead to the space.

    Raises:
        ValueError: A part has a space that is not supported, or a key contains a dot.
    """
    name = ".".join(path)
    found = []
    for key, part in parts_of(space):
        if "." in key:
            raise ValueError(f"the key {key!r} of the observations contains a dot")
        found += entries_of(part, choices, (*path, key))
    if found or parts_of(space):
        return found
    kind, shape = type(space).__name__, list(space.shape or ())
    numbers: Any = []
    if kind == "Box":
        encoding = "bytes" if space.dtype == np.uint8 else "vector"
    elif kind == "MultiBinary":
        encoding = "flags"
    elif kind == "Discrete":
        encoding, shape, numbers = "one_hot", [], [int(space.n)]
    elif kind == "MultiDiscrete":
        encoding, numbers = "one_hot", [int(one) for one in space.nvec.ravel()]
    else:
        raise ValueError(f"the entry {name!r} of the observations is a {kind}, which is not supported")
    if name == MASK and choices and encoding != "one_hot":
        if math.prod(shape) != choices:
            raise ValueError(
                f"the entry {MASK!r} has the shape {shape}, expected one flag for each of {choices} choices"
            )
        encoding = "mask"
    return [[name, encoding, shape, numbers]]


def parts_of(space: Any) -> Any:
    """Returns the keys and spaces of a Dict or a Tuple; [] of any other space."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        return []
    pairs = parts.items() if hasattr(parts, "items") else enumerate(parts)
    return [(str(key), part) for key, part in pairs]


def elements_of(entry: Any) -> int:
    """Returns how many numbers of a row an entry has."""
    _, _, shape, choices = entry
    return sum(choices) if choices else math.prod(shape)


def rows_of(entries: Any, observed: Any) -> torch.Tensor:
    """Returns one row [N, D] float32 for each lane: the numbers of all entries, one after another.

    Args:
        entries: Of the space.
        observed: What the task returns: nested dictionaries and tuples of tensors [N, ...]; numbers of choices may have
            one more dimension of length 1.
    """
    import torch

    parts = []
    for name, _, _, choices in entries:
        part = observed
        for key in name.split("."):
            part = part[key] if hasattr(part, "keys") else part[int(key)]
        numbers = part.reshape(len(part), -1)
        if choices:
            known = [torch.arange(one, device=numbers.device) for one in choices]
            numbers = torch.cat([numbers[:, [i]].long() == one for i, one in enumerate(known)], dim=1)
        parts.append(numbers.float())
    return torch.cat(parts, dim=1)


class ActionKind:
    """What the actions of a task are.

    Attributes:
        kind: `continuous`, `discrete` or `multi_discrete`, as of podrace's spaces.
        shape: Shape of an action.
        choices: Number of choices of each element; [] if actions are continuous.
        low: Lower bound of each element of a continuous action.
        high: Upper bound of each element of a continuous action.
    """

    def __init__(self, space: Any) -> None:
        """Reads the space of an action.

        Raises:
            ValueError: Actions of this space are not supported.
        """
        name = type(space).__name__
        self.low: Any = []
        self.high: Any = []
        self.choices: Any = []
        self.shape: Any = tuple(space.shape or ())
        if name == "Box":
            self.kind = "continuous"
            # Most tasks have unbounded actions, and scale them themselves.
            self.low = [low if math.isfinite(low) else -1.0 for low in space.low.ravel().tolist()]
            self.high = [high if math.isfinite(high) else 1.0 for high in space.high.ravel().tolist()]
        elif name == "Discrete":
            self.kind, self.shape, self.choices = "discrete", (), [int(space.n)]
        elif name == "MultiDiscrete":
            self.kind, self.choices = "multi_discrete", [int(one) for one in space.nvec.ravel()]
        else:
            raise ValueError(f"actions of the space {name} are not supported")

    def for_task(self, action: torch.Tensor) -> torch.Tensor:
        """Returns actions [N, ...] as tasks take them: numbers of choices are [N, 1], or [N, elements]."""
        return action if self.kind == "continuous" else action.reshape(len(action), -1)
