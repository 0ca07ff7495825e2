"""Defines the options of the bodies on MuJoCo Warp; each style has the options of the tasks it reproduces."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from podrace.errors import InvalidArgument
from simulators.mujoco import options as mujoco_options
from simulators.mujoco.options import Range
from simulators.options import check_names, closest, parse_options


@dataclass(frozen=True)
class WarpOptions:
    """Options of all bodies and styles."""

    body: ClassVar[str]

    style: str = "gymnasium"
    """Whose observations, rewards and termination rules: "gymnasium" (version 5) or "isaac" (Isaac Gym)."""
    nconmax: int = 0
    """Capacity for contacts, averaged over the lanes; 0: what the body is known to need."""
    njmax: int = 0
    """Capacity for constraint rows in each lane; 0: what the body is known to need."""
    deterministic: bool = False
    """On a GPU: the same seed and actions give the same steps to the last bit. On the CPU they always do."""

    def _refusal(self, name: str, rule: str) -> InvalidArgument:
        value = getattr(self, name)
        return InvalidArgument(
            f"warp:{self.body}: option {name!r} {rule}, not {list(value) if isinstance(value, tuple) else value!r}"
        )


@dataclass(frozen=True)
class WarpAntOptions(WarpOptions, mujoco_options.AntOptions):
    """Gymnasium's ant."""

    body = "ant"


@dataclass(frozen=True)
class WarpHumanoidOptions(WarpOptions, mujoco_options.HumanoidOptions):
    """Gymnasium's humanoid."""

    body = "humanoid"


@dataclass(frozen=True)
class IsaacTaskOptions(WarpOptions):
    """Options of both Isaac Gym tasks; names and defaults are those of IsaacGymEnvs 1.5.1 (cfg/task)."""

    frame_skip: ClassVar[int] = 2
    """Substeps of 1/120 s per step."""

    style: str = "isaac"
    max_episode_steps: int = 1000
    """Steps after which an episode is truncated."""
    heading_weight: float = 0.5
    """Reward for facing the target."""
    up_weight: float = 0.1
    """Reward for being upright."""
    alive_reward: float = 0.5
    """Reward of a step that the body survives."""
    actions_cost: float = 0.005
    """Cost per unit of squared action."""
    energy_cost: float = 0.05
    """Cost per unit of action times scaled joint speed."""
    joints_at_limit_cost: float = 0.1
    """Cost per joint at its limit."""
    death_cost: float = -2.0
    """The whole reward of the step in which the body falls."""
    termination_height: float = 0.31
    """Height of the torso, in meters, below which the body has fallen."""
    dof_velocity_scale: float = 0.2
    """Scale of joint speeds in the observation."""
    angular_velocity_scale: float = 1.0
    """Scale of the torso's angular velocity in the observation."""
    contact_force_scale: float = 0.1
    """Scale of forces in the observation."""


@dataclass(frozen=True)
class IsaacAntOptions(IsaacTaskOptions):
    """Isaac Gym's ant."""

    body = "ant"


@dataclass(frozen=True)
class IsaacHumanoidOptions(IsaacTaskOptions):
    """Isaac Gym's humanoid."""

    body = "humanoid"

    alive_reward: float = 2.0
    actions_cost: float = 0.01
    joints_at_limit_cost: float = 0.25
    death_cost: float = -1.0
    termination_height: float = 0.8
    dof_velocity_scale: float = 0.1
    angular_velocity_scale: float = 0.25
    contact_force_scale: float = 0.01


STYLES: dict[str, dict[str, type[WarpOptions]]] = {
    "ant": {"gymnasium": WarpAntOptions, "isaac": IsaacAntOptions},
    "humanoid": {"gymnasium": WarpHumanoidOptions, "isaac": IsaacHumanoidOptions},
}
"""Options by body and style."""
_CPU_OPTION = "threads"


def parse_warp_options(options: Mapping[str, object], body: str) -> Any:
    """Builds the options of a body, of its class in STYLES; a range is a list of two numbers.

    Raises:
        InvalidArgument: A name is unknown, or a value has the wrong type or is out of range.
    """
    owner, styles = f"warp:{body}", STYLES[body]
    style = options.get("style", "gymnasium")
    if not isinstance(style, str) or style not in styles:
        hint = closest(str(style), styles)
        raise InvalidArgument(f"{owner}: option 'style' must be one of {', '.join(styles)}, not {style!r}{hint}")
    options_class = styles[style]
    kinds: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(options_class)}
    kinds.pop(_CPU_OPTION, None)
    check_names(f"{owner} ({style})", options, kinds)
    ranges = {name: _range(owner, name, value) for name, value in options.items() if kinds[name] == Range}
    others = {name: value for name, value in options.items() if name not in ranges}
    parsed = dataclasses.replace(parse_options(owner, others, options_class), **ranges)  # type: ignore[arg-type]
    for name, low in (("nconmax", 0), ("njmax", 0), ("max_episode_steps", 1)):
        if getattr(parsed, name) < low:
            raise parsed._refusal(name, f"must be at least {low}")
    for field in dataclasses.fields(parsed):
        if isinstance(value := getattr(parsed, field.name), float) and not math.isfinite(value):
            raise parsed._refusal(field.name, "must be a number")
    return parsed


def _range(owner: str, name: str, value: object) -> Range:
    if isinstance(value, list | tuple) and [type(bound) in (int, float) for bound in value] == [True, True]:
        low, high = map(float, value)
        return low, high
    raise InvalidArgument(f"{owner}: option {name!r} must be a list of two numbers, not {value!r}")
