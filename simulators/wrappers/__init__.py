"""Wraps any simulator: a few tensor operations over all lanes on the simulator's device, without synchronization.

Wrappers are listed in the options of an environment; the first one is innermost:

    [environment]
    id = "Pendulum-v1"

    [[environment.options.wrappers]]
    name = "normalize_observations"

    [[environment.options.wrappers]]
    name = "frame_stack"
    count = 4

or equivalently `options = { wrappers = [{ name = "normalize_observations" }, { name = "frame_stack" }] }`.

| name | options | effect |
|---|---|---|
| `time_limit` | `steps` | truncates an episode after this many steps; the lane is not reset (see TimeLimit) |
| `clip_actions` | | accepts any action, and clips it to the bounds |
| `scale_actions` | | accepts actions in [-1, 1], and scales them to the bounds |
| `normalize_observations` | `clip` = 10.0 | by running means and variances (`simulators.wrappers.running`) |
| `normalize_rewards` | `discount` = 0.99, `clip` = 10.0 | by the running deviation of the return; not in evaluations |
| `pixels` | `height` = 84, `width` = 84, `grayscale` = true | reduces pictures, channels first (see `pixels.py`) |
| `frame_stack` | `count` = 4 | stacks the last observations of the episode, the oldest first |
| `shape_rewards` | `function` | rewards are what your function returns; not in evaluations (see ShapeRewards) |
| `python:module:Class` | its own | your own wrapper (`simulators.wrappers.user_wrapper`) |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.names import FUNCTION
from simulators.base import Simulator, Space, Step
from simulators.options import closest, parse_options
from simulators.user_function import find
from simulators.wrappers.pixels import Pixels, PixelsOptions
from simulators.wrappers.running import NormalizeObservations, NormalizeRewards, ObservationOptions, RewardOptions
from simulators.wrappers.user_wrapper import ShapeRewards, ShapingOptions, UserWrapper
from simulators.wrappers.wrapper import Wrapper, over_lanes, refuse_composite

OPTION = "wrappers"
"""The option that lists the wrappers; every simulator has it."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a wrapper that has none."""


@dataclass(frozen=True)
class TimeLimitOptions:
    """Options of a specification."""

    steps: int = 0
    """Steps after which an episode is truncated; at least 1."""


@dataclass(frozen=True)
class FrameStackOptions:
    """Options of a specification."""

    count: int = 4
    """Number of observations stacked into one; at least 1."""


class TimeLimit(Wrapper):
    """Truncates episodes after a number of steps.

    A single lane of a simulator cannot be reset on request, so the lane continues: the next episode starts in the state
    in which the last one was truncated, and its first observation is the final one of that episode. (Partial episodes;
    Pardo et al. 2018, "Time limits in reinforcement learning".) If a simulator has its own option `max_episode_steps`,
    prefer that: it starts a new episode.
    """

    def __init__(self, inner: Simulator, options: TimeLimitOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: The limit is not positive.
        """
        super().__init__(inner)
        if options.steps < 1:
            raise InvalidArgument(f"{owner}: option 'steps' must be at least 1, not {options.steps}")
        self._limit = options.steps
        self._steps = torch.zeros(self.count, dtype=torch.int32, device=device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._steps.zero_()
        return self.inner.reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = self.inner.step(action)
        self._steps += 1
        has_ended = step.terminated | step.truncated
        is_cut = (self._steps >= self._limit) & ~has_ended
        self._steps.masked_fill_(has_ended | is_cut, 0)
        final = torch.where(over_lanes(is_cut, step.observation), step.observation, step.final_observation)
        return replace(step, truncated=step.truncated | is_cut, final_observation=final)


class ClipActions(Wrapper):
    """Accepts actions of any size in the environment's own units, and clips them to its bounds."""

    def __init__(self, inner: Simulator, options: NoOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: The action space has no bounds.
        """
        super().__init__(inner)
        self._low, self._high = _bounds(inner.action_space, owner, device)
        if inner.action_space.low is None and inner.action_space.high is None:
            raise InvalidArgument(f"{owner}: the action space has no bounds")
        self.action_space = replace(inner.action_space, low=None, high=None)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        return self.inner.step(action.clamp(self._low, self._high))


class ScaleActions(Wrapper):
    """Accepts actions in [-1, 1], clips them to that range, and scales them to the environment's bounds."""

    def __init__(self, inner: Simulator, options: NoOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: The environment's actions are not bounded on both sides.
        """
        super().__init__(inner)
        low, high = _bounds(inner.action_space, owner, device)
        space = inner.action_space
        if not all(math.isfinite(bound) for bound in (*(space.low or (math.inf,)), *(space.high or (math.inf,)))):
            raise InvalidArgument(f"{owner}: the action space is not bounded on both sides")
        self._low, self._high = low, high
        self._center, self._half_range = (low + high) / 2, (high - low) / 2
        ones = (1.0,) * math.prod(space.shape)
        self.action_space = replace(space, low=tuple(-one for one in ones), high=ones)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        spread = torch.addcmul(self._center, action.clamp(-1.0, 1.0), self._half_range)
        # By rounding, an end of the range may exceed the bound.
        return self.inner.step(spread.clamp(self._low, self._high))


class FrameStack(Wrapper):
    """Stacks the last K observations of an episode, the oldest first; at its start, the first one K times.

    Vectors [D] become [K D], pictures with channels [C, H, W] become [K C, H, W], and pictures [H, W] become
    [K, H, W]. `final_observation` is the stack of the episode that ended.
    """

    def __init__(self, inner: Simulator, options: FrameStackOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: The number of frames is not positive, or the observations are composite.
        """
        super().__init__(inner)
        if options.count < 1:
            raise InvalidArgument(f"{owner}: option 'count' must be at least 1, not {options.count}")
        refuse_composite(inner.observation_space, owner)
        space, self._frames = inner.observation_space, options.count
        shape = space.shape
        self._joins_first_axis = len(shape) in (1, 3)
        stacked = (self._frames * shape[0], *shape[1:]) if self._joins_first_axis else (self._frames, *shape)
        self.observation_space = replace(
            space,
            shape=stacked,
            low=None if space.low is None else space.low * self._frames,
            high=None if space.high is None else space.high * self._frames,
            n=0,
        )
        self._stack = torch.zeros((self.count, self._frames, *shape), dtype=space.dtype, device=device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._stack = self._repeated(self.inner.reset(seed)).clone()
        return self._joined(self._stack)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = self.inner.step(action)
        has_ended = step.terminated | step.truncated
        newest = torch.where(over_lanes(has_ended, step.observation), step.final_observation, step.observation)
        final = torch.cat([self._stack[:, 1:], newest[:, None]], 1)
        self._stack = torch.where(over_lanes(has_ended, final), self._repeated(step.observation), final)
        return replace(step, observation=self._joined(self._stack), final_observation=self._joined(final))

    def _repeated(self, observation: Tensor) -> Tensor:
        return observation[:, None].expand_as(self._stack)

    def _joined(self, stack: Tensor) -> Tensor:
        return stack.flatten(1, 2) if self._joins_first_axis else stack


def _bounds(space: Space, owner: str, device: torch.device) -> tuple[Tensor, Tensor]:
    if space.kind != "continuous":
        raise InvalidArgument(f"{owner}: the actions are {space.kind.replace('_', '-')}, not continuous")
    open_ends = (math.inf,) * math.prod(space.shape)
    low = torch.tensor(space.low or [-end for end in open_ends], dtype=torch.float32, device=device)
    high = torch.tensor(space.high or open_ends, dtype=torch.float32, device=device)
    return low.view(space.shape), high.view(space.shape)


# --- wrappers by name ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parsed:
    """A parsed entry of the option `wrappers`."""

    owner: str
    make: Callable[[Simulator, Any, str, torch.device], Simulator]
    options: object


WRAPPERS: dict[str, tuple[Callable[[Simulator, Any, str, torch.device], Simulator], type]] = {
    "time_limit": (TimeLimit, TimeLimitOptions),
    "clip_actions": (ClipActions, NoOptions),
    "scale_actions": (ScaleActions, NoOptions),
    "normalize_observations": (NormalizeObservations, ObservationOptions),
    "normalize_rewards": (NormalizeRewards, RewardOptions),
    "pixels": (Pixels, PixelsOptions),
    "frame_stack": (FrameStack, FrameStackOptions),
    "shape_rewards": (ShapeRewards, ShapingOptions),
}
"""Wrappers and the classes of their options, by their name in a specification."""


def parse(id: str, tables: object, allowed: Allowed = EVERYTHING) -> list[Parsed]:
    """Checks the value of the option `wrappers`, and imports the code of users that it names.

    Args:
        id: Id of the simulator, for error messages.
        tables: A list of tables, each with a `name` and the options of that wrapper.
        allowed: Which modules may be used.

    Raises:
        InvalidArgument: The value is not such a list, a name or an option is unknown, or code cannot be imported.
    """
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) and "name" in table for table in tables):
        raise InvalidArgument(
            f"{id}: option 'wrappers' must be a list of tables with a name, "
            f'as [{{ name = "frame_stack", count = 4 }}], not {tables!r}'
        )
    parsed = []
    for table in tables:
        name, owner = table["name"], f"{id}: wrapper {table['name']!r}"
        options = {key: value for key, value in table.items() if key != "name"}
        if str(name).startswith(FUNCTION):
            code = find(str(name), allowed, owner, f"{id}: option wrappers: name = {name!r}")
            parsed.append(Parsed(owner, partial(UserWrapper, code), options))
            continue
        if name not in WRAPPERS:
            hint = closest(str(name), WRAPPERS)
            raise InvalidArgument(f"{id}: there is no wrapper {name!r}{hint} (wrappers: {', '.join(WRAPPERS)})")
        make, options_class = WRAPPERS[name]
        own: Any = parse_options(owner, options, options_class)
        if isinstance(own, ShapingOptions):
            own = find(own.function, allowed, owner, f"{id}: option wrappers: function = {own.function!r}")
        parsed.append(Parsed(owner, make, own))
    return parsed


def wrap(simulator: Simulator, wrappers: Sequence[Parsed], device: str) -> Simulator:
    """Wraps a simulator, the first wrapper innermost; closes the simulator on failure.

    Raises:
        InvalidArgument: A wrapper does not fit the spaces, or a value cannot be used.
    """
    wrapped = simulator
    try:
        for wrapper in wrappers:
            wrapped = wrapper.make(wrapped, wrapper.options, wrapper.owner, torch.device(device))
    except InvalidArgument:
        simulator.close()
        raise
    return wrapped
