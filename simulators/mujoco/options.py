"""Defines the options of Gymnasium's MuJoCo tasks: names and defaults are those of Gymnasium's constructors."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from podrace.errors import InvalidArgument
from simulators.options import check_names, parse_options

Range = tuple[float, float]
"""(low, high); -inf and inf where unbounded."""


@dataclass(frozen=True)
class TaskOptions:
    """Options of all tasks.

    Raises:
        InvalidArgument: A value is out of range.
    """

    id: ClassVar[str]
    """Gymnasium's id of the task."""

    ctrl_cost_weight: float
    """Cost per unit of squared action."""
    reset_noise_scale: float
    """Scale of the noise added to the model's initial state at the start of an episode."""
    frame_skip: int = 5
    """Physics substeps per step."""
    forward_reward_weight: float = 1.0
    """Reward per meter per second along x."""
    exclude_current_positions_from_observation: bool = True
    """Whether the position of the body along the ground is left out of the observation."""
    max_episode_steps: int = 1000
    """Steps after which an episode is truncated."""
    threads: int = 0
    """Threads that compute the physics; 0: one for each core, but at most one for 4 lanes, and 16."""

    def __post_init__(self) -> None:
        for name, low in (("frame_skip", 1), ("max_episode_steps", 1), ("threads", 0), ("reset_noise_scale", 0)):
            if not low <= getattr(self, name) < math.inf:
                raise self._refusal(name, f"must be at least {low}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and not value[0] <= value[1]:
                raise self._refusal(field.name, "must be [low, high] with low <= high")

    def _refusal(self, name: str, rule: str) -> InvalidArgument:
        value = getattr(self, name)
        return InvalidArgument(f"mujoco:{self.id}: option {name!r} {rule}, not {_shown(value)}")


@dataclass(frozen=True)
class HalfCheetahOptions(TaskOptions):
    """A two-legged cheetah, which cannot fall."""

    id = "HalfCheetah-v5"

    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1


@dataclass(frozen=True)
class WalkingOptions(TaskOptions):
    """Options of all bodies that can fall."""

    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = 5e-3
    healthy_reward: float = 1.0
    """Reward of a step after which the body is healthy."""
    terminate_when_unhealthy: bool = True
    """Whether an episode ends when the body is not healthy."""
    healthy_z_range: Range = (0.2, 1.0)
    """Heights of a healthy body, in meters."""


@dataclass(frozen=True)
class AntOptions(WalkingOptions):
    """A four-legged ant."""

    id = "Ant-v5"

    ctrl_cost_weight: float = 0.5
    reset_noise_scale: float = 0.1
    contact_cost_weight: float = 5e-4
    """Cost per unit of squared contact force."""
    contact_force_range: Range = (-1.0, 1.0)
    """Contact forces are clipped to this range, in the cost and in the observation."""
    include_cfrc_ext_in_observation: bool = True
    """Whether the observation contains the external contact forces on the bodies."""


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
    """Cost per unit of squared contact force."""
    contact_cost_range: Range = (-math.inf, 10.0)
    """The contact cost is clipped to this range."""
    include_cinert_in_observation: bool = True
    """Whether the observation contains the inertia of the bodies."""
    include_cvel_in_observation: bool = True
    """Whether the observation contains the velocities of the bodies."""
    include_qfrc_actuator_in_observation: bool = True
    """Whether the observation contains the forces of the actuators."""
    include_cfrc_ext_in_observation: bool = True
    """Whether the observation contains the external contact forces on the bodies."""


@dataclass(frozen=True)
class HopperOptions(WalkingOptions):
    """A one-legged hopper."""

    id = "Hopper-v5"

    frame_skip: int = 4
    healthy_state_range: Range = (-100.0, 100.0)
    """Range of a healthy body's velocities, and of all its positions except x and z."""
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)
    """Angle of a healthy torso, in radians."""


@dataclass(frozen=True)
class Walker2dOptions(WalkingOptions):
    """A two-legged walker in a plane."""

    id = "Walker2d-v5"

    frame_skip: int = 4
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    """Angle of a healthy torso, in radians."""


Options = TypeVar("Options", bound=TaskOptions)


def parse_task_options(options: Mapping[str, object], options_class: type[Options]) -> Options:
    """Builds a task's options from a user's options; a range is a list of two numbers.

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
