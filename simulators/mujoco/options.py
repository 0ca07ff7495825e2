"""What a user may set about Gymnasium's MuJoCo tasks: names and defaults are those of Gymnasium's constructors."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from podrace.errors import InvalidArgument
from simulators.options import check_names, parse_options

Range = tuple[float, float]
"""From low to high; inf and -inf where open."""


@dataclass(frozen=True)
class TaskOptions:
    """What all tasks have in common.

    Raises:
        InvalidArgument: A value is out of range.
    """

    id: ClassVar[str]
    """Gymnasium's name of the task."""

    ctrl_cost_weight: float
    """Cost of a unit of squared action."""
    reset_noise_scale: float
    """How far first states are from the model's own."""
    frame_skip: int = 5
    """Substeps of the physics in a step."""
    forward_reward_weight: float = 1.0
    """Reward for a metre per second along x."""
    exclude_current_positions_from_observation: bool = True
    """Where along the ground the body is goes unseen."""
    max_episode_steps: int = 1000
    """Steps after which an episode is truncated."""
    threads: int = 0
    """Threads that compute the physics; 0: as many as the process has cores for them, see `default_threads`."""

    def __post_init__(self) -> None:
        for name, low in (("frame_skip", 1), ("max_episode_steps", 1), ("threads", 0), ("reset_noise_scale", 0)):
            if not low <= getattr(self, name) < math.inf:
                raise self._refusal(name, f"must be at least {low}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and not value[0] <= value[1]:
                raise self._refusal(field.name, "must go from low to high")

    def _refusal(self, name: str, rule: str) -> InvalidArgument:
        value = getattr(self, name)
        return InvalidArgument(f"mujoco:{self.id}: option {name!r} {rule}, not {_shown(value)}")


@dataclass(frozen=True)
class HalfCheetahOptions(TaskOptions):
    """A cheetah of two legs, which cannot fall."""

    id = "HalfCheetah-v5"

    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1


@dataclass(frozen=True)
class WalkingOptions(TaskOptions):
    """What bodies that can fall have in common."""

    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = 5e-3
    healthy_reward: float = 1.0
    """Reward for a step after which the body is healthy."""
    terminate_when_unhealthy: bool = True
    """An episode ends when the body is not."""
    healthy_z_range: Range = (0.2, 1.0)
    """Heights of a healthy body in metres."""


@dataclass(frozen=True)
class AntOptions(WalkingOptions):
    """An ant of four legs."""

    id = "Ant-v5"

    ctrl_cost_weight: float = 0.5
    reset_noise_scale: float = 0.1
    contact_cost_weight: float = 5e-4
    """Cost of a unit of squared contact force."""
    contact_force_range: Range = (-1.0, 1.0)
    """Forces are clipped to it, in the cost and in the observation."""
    include_cfrc_ext_in_observation: bool = True


@dataclass(frozen=True)
class HumanoidOptions(WalkingOptions):
    """A body with two arms and two legs."""

    id = "Humanoid-v5"

    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 1e-2
    healthy_reward: float = 5.0
    healthy_z_range: Range = (1.0, 2.0)
    contact_cost_weight: float = 5e-7
    """Cost of a unit of squared contact force."""
    contact_cost_range: Range = (-math.inf, 10.0)
    """The cost is clipped to it."""
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True


@dataclass(frozen=True)
class HopperOptions(WalkingOptions):
    """One leg."""

    id = "Hopper-v5"

    frame_skip: int = 4
    healthy_state_range: Range = (-100.0, 100.0)
    """Of every position but x and z, and every velocity."""
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)
    """Of the torso, in radians."""


@dataclass(frozen=True)
class Walker2dOptions(WalkingOptions):
    """Two legs in a plane."""

    id = "Walker2d-v5"

    frame_skip: int = 4
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    """Of the torso, in radians."""


Options = TypeVar("Options", bound=TaskOptions)


def parse_task_options(options: Mapping[str, object], options_class: type[Options]) -> Options:
    """Builds a task's options from what a user wrote; a range is a list of two numbers.

    Raises:
        InvalidArgument: A name is unknown, or a value has the wrong type or is out of range.
    """
    kinds: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(options_class)}
    owner = f"mujoco:{options_class.id}"
    check_names(owner, options, kinds)
    ranges = {name: _range(owner, name, value) for name, value in options.items() if kinds[name] == Range}
    others = {name: value for name, value in options.items() if name not in ranges}
    return dataclasses.replace(parse_options(owner, others, options_class), **ranges)  # type: ignore[arg-type]


def _range(owner: str, name: str, value: object) -> Range:
    if isinstance(value, list | tuple) and [type(bound) in (int, float) for bound in value] == [True, True]:
        low, high = map(float, value)
        return low, high
    raise InvalidArgument(f"{owner}: option {name!r} must be a list of two numbers, not {value!r}")


def _shown(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
