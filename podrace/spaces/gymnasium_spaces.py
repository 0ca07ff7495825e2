"""Translates spaces of Gymnasium: the arrays of a lane's observations and actions, and the entries of Dict and Tuple.

Does not import torch.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from podrace.spaces.entries import (
    BYTES,
    FLAGS,
    MASK,
    MASK_KEY,
    MOST_ENTRIES,
    ONE_HOT,
    VECTOR,
    Entry,
    flattened,
    row_type,
    width,
)

Array = NDArray[Any]
COMPOSITE = (spaces.Dict, spaces.Tuple)


class UnsupportedSpaceError(ValueError):
    """A space, or a part of one, is not supported; the text is the reason."""


def entries_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> tuple[Entry, ...]:
    """Returns the entries of a Dict or Tuple observation; none of any other.

    Args:
        observation: Space of the observations.
        action: Space of the actions: the top-level key `action_mask` of a Dict is a mask if it has an element for each
            choice of Discrete or MultiDiscrete actions, or for each element of MultiBinary ones; with continuous
            actions it is an entry like any other.

    Raises:
        UnsupportedSpaceError: A part is neither Box, Discrete, MultiDiscrete, MultiBinary, Dict nor Tuple, or the mask
            does not fit the actions.
    """
    if not isinstance(observation, COMPOSITE):
        return ()
    found = list(_entries(observation, ()))
    if not found or len(found) > MOST_ENTRIES:
        raise UnsupportedSpaceError(f"it has {len(found)} entries, expected 1 to {MOST_ENTRIES}")
    choices = choices_of(action)
    if choices and isinstance(observation, spaces.Dict):
        found = [_mask(entry, choices) if entry.name == MASK_KEY else entry for entry in found]
    if all(entry.encoding == MASK for entry in found):
        raise UnsupportedSpaceError("it has no entry besides the action mask")
    return tuple(found)


def choices_of(action: spaces.Space[Any]) -> int:
    """Returns the number of elements of an action mask; 0 if the actions cannot be masked.

    An element of a MultiBinary action has one: whether it may be 1. That it may be 0 cannot be forbidden.
    """
    if isinstance(action, spaces.Discrete):
        return int(action.n)
    if isinstance(action, spaces.MultiBinary):
        return prod(action.shape)
    return int(action.nvec.sum()) if isinstance(action, spaces.MultiDiscrete) else 0


def _mask(entry: Entry, choices: int) -> Entry:
    if entry.encoding == ONE_HOT or entry.size != choices:
        raise UnsupportedSpaceError(
            f"entry {MASK_KEY!r} has the shape {list(entry.shape)}, expected one flag for each of {choices} choices"
        )
    return Entry(entry.name, MASK, entry.shape)


def _entries(space: spaces.Space[Any], path: tuple[str, ...]) -> Iterator[Entry]:
    name = ".".join(path)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            if isinstance(space, spaces.Dict) and (not isinstance(key, str) or not key or "." in key):
                raise UnsupportedSpaceError(f"the key {key!r} must be a non-empty string without dots")
            yield from _entries(part, (*path, str(key)))
    elif isinstance(space, spaces.Box):
        yield Entry(name, BYTES if space.dtype == np.uint8 else VECTOR, tuple(space.shape))
    elif isinstance(space, spaces.Discrete):
        yield Entry(name, ONE_HOT, (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        start = np.broadcast_to(space.start, space.nvec.shape).ravel().tolist()
        yield Entry(name, ONE_HOT, tuple(space.nvec.shape), tuple(space.nvec.ravel().tolist()), tuple(start))
    elif isinstance(space, spaces.MultiBinary):
        yield Entry(name, FLAGS, tuple(space.shape))
    else:
        raise UnsupportedSpaceError(f"its entry {name!r} is a {type(space).__name__}")


def observed(observation: spaces.Space[Any], action: spaces.Space[Any]) -> tuple[tuple[int, ...], str]:
    """Returns the shape and type of one lane's observation, as a simulator returns it."""
    if isinstance(observation, spaces.Discrete):
        return (int(observation.n),), "float32"
    if isinstance(observation, COMPOSITE):
        entries = entries_of(observation, action)
        return (width(entries),), str(row_type(entries))
    return observation.shape or (), "uint8" if observation.dtype == np.uint8 else "float32"


def observation_encoder(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Callable[[Any], Array] | None:
    """Returns a function from a lane's observation to a row of the buffer; None if plain assignment suffices."""
    if isinstance(observation, COMPOSITE):
        entries = entries_of(observation, action)
        return lambda found: flattened(entries, found)
    if not isinstance(observation, spaces.Discrete):
        return None
    one_hot, start = np.eye(int(observation.n), dtype=np.float32), int(observation.start)
    return lambda found: one_hot[int(found) - start]


def acted(action: spaces.Space[Any]) -> tuple[tuple[int, ...], str]:
    """Returns the shape and type of one lane's action, as a simulator receives it."""
    if isinstance(action, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return action.shape or (), "int64"
    return action.shape or (), str(action.dtype)


def action_decoder(space: spaces.Space[Any]) -> Callable[[Array], Any]:
    """Returns a function from a batch of actions to one action per lane, in the environment's own type."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: (action + start).tolist() if start else action.tolist()
    dtype = space.dtype
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(space.start)
        return lambda action: (action + first).astype(dtype)
    return lambda action: action.astype(dtype, copy=False)


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the action mask that an environment returns in `info` to its observation, as the entry `action_mask`.

    The entries of a Dict stay; any other observation becomes the entry `observation`.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        """Wraps an environment.

        Raises:
            ValueError: Its actions are continuous.
        """
        super().__init__(environment)
        choices, space = choices_of(environment.action_space), environment.observation_space
        if not choices:
            raise ValueError("action masks are for Discrete, MultiDiscrete and MultiBinary actions")
        self._is_dict = isinstance(space, spaces.Dict)
        own = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self._choices = choices
        self.observation_space = spaces.Dict({**own, MASK_KEY: spaces.MultiBinary(choices)})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """See gymnasium.Env."""
        observation, info = self.env.reset(**options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See gymnasium.Env."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK_KEY not in info:
            raise KeyError(f"info has no {MASK_KEY!r}, which the option info_action_mask promises")
        own = observation if self._is_dict else {"observation": observation}
        mask = info[MASK_KEY]
        # For MultiDiscrete actions, Gymnasium's masks are tuples of one array for each element.
        flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)
        return {**own, MASK_KEY: flat}
