"""Wraps simulators with user code: a wrapper class, or a function that shapes rewards.

    [[environment.options.wrappers]]
    name = "python:mine:Noisy"
    scale = 0.1

    [[environment.options.wrappers]]
    name = "shape_rewards"
    function = "python:mine:shaped"

A wrapper is called with the simulator that it wraps and the options of its table, as keyword arguments, and returns a
Simulator, for instance one derived from `simulators.wrappers.wrapper.Wrapper`. It also receives `device` if it has such
a parameter.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Simulator, Space, Step
from simulators.options import check_names
from simulators.user_function import explained, label
from simulators.wrappers.wrapper import Wrapper, over_lanes


@dataclass(frozen=True)
class ShapingOptions:
    """Options of a specification."""

    function: str = ""
    """Address of the function, `python:module:function`."""


class UserWrapper(Wrapper):
    """A wrapper that user code made. Its errors, and results that do not fit, are reported in one line."""

    def __init__(
        self,
        code: Callable[..., Any],
        inner: Simulator,
        options: Mapping[str, object],
        owner: str,
        device: torch.device,
    ) -> None:
        """Calls the user code.

        Raises:
            InvalidArgument: It raises, has no parameter for an option, or does not return a Simulator with the same
                lanes and agents.
        """
        parameters = inspect.signature(code).parameters
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            check_names(owner, options, set(list(parameters)[1:]) - {"device"})
        placement = {"device": str(device)} if "device" in parameters else {}
        with explained(owner, code):
            made = code(inner, **options, **placement)
        self._code, self._owner = code, owner
        if not isinstance(made, Simulator):
            raise self._unfit(f"returned a {type(made).__name__}, expected a simulators.Simulator")
        if made.count != inner.count:
            raise self._unfit(f"has {made.count} lanes, expected the {inner.count} of what it wraps")
        if made.observation_space.agents != inner.observation_space.agents:
            raise self._unfit("changes the agents of the environment")
        super().__init__(made)

    def _unfit(self, problem: str) -> InvalidArgument:
        return InvalidArgument(f"{self._owner}: {label(self._code)} {problem}")

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        with explained(self._owner, self._code):
            observation = self.inner.reset(seed)
        self._check("reset", "observation", observation, self.observation_space)
        return observation

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        with explained(self._owner, self._code):
            step = self.inner.step(action)
        if not isinstance(step, Step):
            raise self._unfit(f"returned a {type(step).__name__} from step, expected a simulators.Step")
        for name in ("observation", "final_observation"):
            self._check("step", name, getattr(step, name), self.observation_space)
        for name in ("reward", "terminated", "truncated"):
            self._check("step", name, getattr(step, name), None)
        return step

    def _check(self, method: str, name: str, found: object, space: Space | None) -> None:
        wanted = (self.count, *(space.shape if space else ()))
        if not isinstance(found, Tensor) or found.shape != wanted:
            given = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise self._unfit(f"returned {name} {given} from {method}, expected a tensor {list(wanted)}")


class ShapeRewards(Wrapper):
    """Replaces rewards by what a function returns for each step. Evaluations leave it out; see `docs/extending.md`.

        def shaped(observation, action, reward, next_observation, terminated):
            return reward + 0.1 * (next_observation[:, 0] - observation[:, 0])

    `next_observation` is the last one of an episode where the episode ends. All arguments have a row for each lane, and
    so has the result [N].
    """

    def __init__(self, inner: Simulator, function: Callable[..., Any], owner: str, device: torch.device) -> None:
        """Wraps a simulator."""
        super().__init__(inner)
        self._function, self._owner = function, owner
        self._observation = torch.zeros(0, device=device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        observation = self.inner.reset(seed)
        self._observation = observation.clone()
        return observation

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator.

        Raises:
            InvalidArgument: The function raised, or did not return a number for each lane.
        """
        step = self.inner.step(action)
        has_ended = over_lanes(step.terminated | step.truncated, step.observation)
        following = torch.where(has_ended, step.final_observation, step.observation)
        with explained(self._owner, self._function):
            shaped = self._function(self._observation, action, step.reward, following, step.terminated)
        if not isinstance(shaped, Tensor) or shaped.shape != step.reward.shape:
            given = list(shaped.shape) if isinstance(shaped, Tensor) else type(shaped).__name__
            raise InvalidArgument(
                f"{self._owner}: {label(self._function)} returned {given}, expected rewards [{self.count}]"
            )
        self._observation = step.observation.clone()
        return replace(step, reward=shaped.to(step.reward.dtype))
