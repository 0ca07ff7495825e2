"""Wrappers around any simulator: a few tensor operations over all lanes, on the simulator's device, without a wait.

Named in the options of an environment, the first one innermost:

    [environment]
    id = "Pendulum-v1"

    [[environment.options.wrappers]]
    name = "normalize_observations"

    [[environment.options.wrappers]]
    name = "frame_stack"
    count = 4

or, which is the same, `options = { wrappers = [{ name = "normalize_observations" }, { name = "frame_stack" }] }`.

| name | options | what it does |
|---|---|---|
| `time_limit` | `steps` | truncates an episode after so many steps; the lane goes on where it is (see TimeLimit) |
| `clip_actions` | | takes any action, and clips it to the bounds |
| `scale_actions` | | takes actions in [-1, 1], and spreads them over the bounds |
| `normalize_observations` | `clip` = 10.0 | by running means and variances (`simulators.wrappers.running`) |
| `normalize_rewards` | `discount` = 0.99, `clip` = 10.0 | by the running deviation of the discounted return |
| `pixels` | `height` = 84, `width` = 84, `grayscale` = true | small pictures, channels first (see `pixels.py`) |
| `frame_stack` | `count` = 4 | observes the last observations of the episode, the oldest first |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Simulator, Space, Step
from simulators.options import closest, parse_options
from simulators.wrappers.pixels import Pixels, PixelsOptions
from simulators.wrappers.running import NormalizeObservations, NormalizeRewards, ObservationOptions, RewardOptions
from simulators.wrappers.wrapper import Wrapper, over_lanes

OPTION = "wrappers"
"""The option of every simulator that lists them."""


@dataclass(frozen=True)
class NoOptions:
    """Nothing can be set."""


@dataclass(frozen=True)
class TimeLimitOptions:
    """What a specification can set."""

    steps: int = 0
    """Steps after which an episode is cut off; at least 1."""


@dataclass(frozen=True)
class FrameStackOptions:
    """What a specification can set."""

    count: int = 4
    """Observations in one; at least 1."""


class TimeLimit(Wrapper):
    """Truncates episodes after a number of steps.

    A simulator begins no single lane anew when asked to, so the lane goes on: the next episode begins where the last
    one was cut off, and its first observation is the final one of that. (A partial episode; Pardo et al. 2018,
    "Time limits in reinforcement learning".) Where a simulator has `max_episode_steps` of its own, that begins a
    new episode, and is what you want.
    """

    def __init__(self, inner: Simulator, options: TimeLimitOptions, owner: str, device: torch.device) -> None:
        """Wraps.

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
        is_over = step.terminated | step.truncated
        is_cut = (self._steps >= self._limit) & ~is_over
        self._steps.masked_fill_(is_over | is_cut, 0)
        final = torch.where(over_lanes(is_cut, step.observation), step.observation, step.final_observation)
        return replace(step, truncated=step.truncated | is_cut, final_observation=final)


class ClipActions(Wrapper):
    """Takes actions of any size in the environment's own units, and clips them to its bounds."""

    def __init__(self, inner: Simulator, options: NoOptions, owner: str, device: torch.device) -> None:
        """Wraps.

        Raises:
            InvalidArgument: There is nothing to clip to.
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
    """Takes actions in [-1, 1], clips them to that, and spreads them over the environment's bounds."""

    def __init__(self, inner: Simulator, options: NoOptions, owner: str, device: torch.device) -> None:
        """Wraps.

        Raises:
            InvalidArgument: The environment's actions are not bounded on both sides.
        """
        super().__init__(inner)
        low, high = _bounds(inner.action_space, owner, device)
        space = inner.action_space
        if not all(math.isfinite(bound) for bound in (*(space.low or (math.inf,)), *(space.high or (math.inf,)))):
            raise InvalidArgument(f"{owner}: the action space is not bounded on both sides")
        self._low, self._high = low, high
        self._centre, self._half_range = (low + high) / 2, (high - low) / 2
        ones = (1.0,) * math.prod(space.shape)
        self.action_space = replace(space, low=tuple(-one for one in ones), high=ones)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        spread = torch.addcmul(self._centre, action.clamp(-1.0, 1.0), self._half_range)
        # Rounded, an end of the range may lie beyond the bound.
        return self.inner.step(spread.clamp(self._low, self._high))


class FrameStack(Wrapper):
    """Observes the last K observations of an episode, the oldest first; at its beginning the first one K times.

    Vectors [D] become one of [K D], pictures with channels [C, H, W] become [K C, H, W], those without become
    [K, H, W]. `final_observation` is the stack of the episode that ended.
    """

    def __init__(self, inner: Simulator, options: FrameStackOptions, owner: str, device: torch.device) -> None:
        """Wraps.

        Raises:
            InvalidArgument: The number of frames is not positive.
        """
        super().__init__(inner)
        if options.count < 1:
            raise InvalidArgument(f"{owner}: option 'count' must be at least 1, not {options.count}")
        space, self._frames = inner.observation_space, options.count
        shape = space.shape
        self._joins_first_axis = len(shape) in (1, 3)
        stacked = (self._frames * shape[0], *shape[1:]) if self._joins_first_axis else (self._frames, *shape)
        self.observation_space = replace(
            space,
            shape=stacked,
            low=None if space.low is None else space.low * self._frames,
            high=None if space.high is None else space.high * self._frames,
        )
        self._stack = torch.zeros((self.count, self._frames, *shape), dtype=space.dtype, device=device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self._stack = self._repeated(self.inner.reset(seed)).clone()
        return self._joined(self._stack)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = self.inner.step(action)
        is_over = step.terminated | step.truncated
        newest = torch.where(over_lanes(is_over, step.observation), step.final_observation, step.observation)
        final = torch.cat([self._stack[:, 1:], newest[:, None]], 1)
        self._stack = torch.where(over_lanes(is_over, final), self._repeated(step.observation), final)
        return replace(step, observation=self._joined(self._stack), final_observation=self._joined(final))

    def _repeated(self, observation: Tensor) -> Tensor:
        return observation[:, None].expand_as(self._stack)

    def _joined(self, stack: Tensor) -> Tensor:
        return stack.flatten(1, 2) if self._joins_first_axis else stack


def _bounds(space: Space, owner: str, device: torch.device) -> tuple[Tensor, Tensor]:
    if space.kind != "continuous":
        raise InvalidArgument(f"{owner}: the actions are choices, not numbers")
    open_ends = (math.inf,) * math.prod(space.shape)
    low = torch.tensor(space.low or [-end for end in open_ends], dtype=torch.float32, device=device)
    high = torch.tensor(space.high or open_ends, dtype=torch.float32, device=device)
    return low.view(space.shape), high.view(space.shape)


# --- by name -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parsed:
    """A wrapper as a user named it, before there is anything to wrap."""

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
}
"""By the name that a specification gives: the wrapper, and its options."""


def parse(id: str, tables: object) -> list[Parsed]:
    """Checks what a user wrote under `wrappers`.

    Args:
        id: Whose option it is, for error lines.
        tables: A list of tables, each with a `name` and the options of that wrapper.

    Raises:
        InvalidArgument: It is no such list, or a name or an option is unknown.
    """
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) and "name" in table for table in tables):
        raise InvalidArgument(
            f"{id}: option 'wrappers' must be a list of tables with a name, "
            f'as [{{ name = "frame_stack", count = 4 }}], not {tables!r}'
        )
    parsed = []
    for table in tables:
        name, owner = table["name"], f"{id}: wrapper {table['name']!r}"
        if name not in WRAPPERS:
            hint = closest(str(name), WRAPPERS)
            raise InvalidArgument(f"{id}: there is no wrapper {name!r}{hint} (wrappers: {', '.join(WRAPPERS)})")
        make, options_class = WRAPPERS[name]
        options = {key: value for key, value in table.items() if key != "name"}
        parsed.append(Parsed(owner, make, parse_options(owner, options, options_class)))
    return parsed


def wrap(simulator: Simulator, wrappers: Sequence[Parsed], device: str) -> Simulator:
    """Wraps a simulator, the first wrapper innermost; closes it if that cannot be done.

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
