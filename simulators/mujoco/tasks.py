"""Computes observations, rewards and health of Gymnasium's locomotion tasks (version 5) over a batch of physics.

Each formula is that of the module of the same name in gymnasium/envs/mujoco, with a leading axis for the lanes. Nothing
here steps or resets.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.mujoco.batch import Lanes, Numbers, PhysicsBatch
from simulators.mujoco.options import (
    AntOptions,
    HalfCheetahOptions,
    HopperOptions,
    HumanoidOptions,
    Range,
    TaskOptions,
    Walker2dOptions,
    WalkingOptions,
)

Flags = NDArray[np.bool_]
_Options = TypeVar("_Options", bound=TaskOptions)
_Walking = TypeVar("_Walking", bound=WalkingOptions)
_VELOCITY_LIMITS = (-10.0, 10.0)


class Piece(NamedTuple):
    """A part of the observation."""

    values: Numbers
    """[N, size], a live view."""
    limits: Range | None = None
    """Observed values are clipped to this range."""


class LocomotionTask(Generic[_Options]):
    """One task over N simulations; every result belongs to the state that the last call to the physics left.

    Attributes:
        pieces: Parts of the observation, concatenated.
    """

    xml: ClassVar[str]
    """File name of the model among Gymnasium's assets."""
    options_class: ClassVar[type[TaskOptions]]
    normal_velocities: ClassVar[bool] = False
    """Whether first velocities are normally distributed instead of uniformly; first positions are always uniform."""
    hidden_positions: ClassVar[int] = 1
    """Number of coordinates along the ground, which may be left out of the observation."""

    def __init__(self, options: _Options, physics: PhysicsBatch) -> None:
        self.options = options
        self._physics = physics
        self._step_seconds = physics.model.opt.timestep * options.frame_skip
        self.pieces = self._observed()

    @staticmethod
    def needs_contact_forces(options: Any) -> bool:
        """Whether the observation or the reward depends on contact forces."""
        return False

    def _observed(self) -> list[Piece]:
        return [Piece(self._positions()), Piece(self._physics.qvel)]

    def _positions(self) -> Numbers:
        hidden = self.hidden_positions if self.options.exclude_current_positions_from_observation else 0
        return self._physics.qpos[:, hidden:]

    def observe(self, out: NDArray[np.float32], lanes: Lanes | slice = slice(None)) -> None:
        """Writes the observations of `lanes` to their rows of `out`, [N, size]."""
        column = 0
        for values, limits in self.pieces:
            columns = slice(column, column := column + values.shape[1])
            seen = values[lanes]
            out[lanes, columns] = seen if limits is None else _clipped(seen, limits)

    def x_position(self) -> Numbers:
        """Returns a copy of the x positions by which progress is measured, [N], in meters."""
        position: Numbers = self._physics.qpos[:, 0].copy()
        return position

    def healthy(self) -> Flags | None:
        """Returns which lanes are healthy, [N], or None if the task does not define health."""
        return None

    def reward(self, x_before: Numbers, x_after: Numbers, healthy: Flags | None) -> Numbers:
        """Computes the rewards [N]: speed and health, minus the costs of actions and contacts."""
        speed = (x_after - x_before) / self._step_seconds
        cost = self.options.ctrl_cost_weight * _squared(self._physics.ctrl) + self._contact_cost()
        reward: Numbers = self.options.forward_reward_weight * speed + self._health_reward(healthy) - cost
        return reward

    def _health_reward(self, healthy: Flags | None) -> Numbers | float:
        return 0.0

    def _contact_cost(self) -> Numbers | float:
        return 0.0


class HalfCheetah(LocomotionTask[HalfCheetahOptions]):
    """gymnasium.envs.mujoco.half_cheetah_v5."""

    xml = "half_cheetah.xml"
    options_class = HalfCheetahOptions
    normal_velocities = True


class Walking(LocomotionTask[_Walking]):
    """A body that can fall."""

    def _health_reward(self, healthy: Flags | None) -> Numbers | float:
        return 0.0 if healthy is None else np.where(healthy, self.options.healthy_reward, 0.0)


class Ant(Walking[AntOptions]):
    """gymnasium.envs.mujoco.ant_v5."""

    xml = "ant.xml"
    options_class = AntOptions
    normal_velocities = True
    hidden_positions = 2

    @staticmethod
    def needs_contact_forces(options: AntOptions) -> bool:
        """See LocomotionTask: they appear in the cost and in the observation."""
        return options.contact_cost_weight != 0 or options.include_cfrc_ext_in_observation

    def _observed(self) -> list[Piece]:
        # The torso is the first body after the world; its x is one substep behind qpos, as in Gymnasium.
        self._torso_x = self._physics.bind("xpos")[:, 3]
        self._contact_forces = self._physics.bind("cfrc_ext")
        pieces = super()._observed()
        if self.options.include_cfrc_ext_in_observation:
            pieces.append(Piece(self._contact_forces[:, 6:], self.options.contact_force_range))
        return pieces

    def x_position(self) -> Numbers:
        """Returns the x positions of the torso, [N], in meters."""
        position: Numbers = self._torso_x.copy()
        return position

    def healthy(self) -> Flags:
        """Healthy: at a healthy height, with a finite state."""
        z, (low, high) = self._physics.qpos[:, 2], self.options.healthy_z_range
        finite = np.logical_and.reduce(np.isfinite(self._physics.positions_and_velocities), axis=1)
        healthy: Flags = finite & (low <= z) & (z <= high)
        return healthy

    def _contact_cost(self) -> Numbers | float:
        if self.options.contact_cost_weight == 0:
            return 0.0
        clipped = _clipped(self._contact_forces, self.options.contact_force_range)
        cost: Numbers = self.options.contact_cost_weight * _squared(clipped)
        return cost


class Humanoid(Walking[HumanoidOptions]):
    """gymnasium.envs.mujoco.humanoid_v5."""

    xml = "humanoid.xml"
    options_class = HumanoidOptions
    hidden_positions = 2

    @staticmethod
    def needs_contact_forces(options: HumanoidOptions) -> bool:
        """See LocomotionTask: they appear in the cost and in the observation."""
        return options.contact_cost_weight != 0 or options.include_cfrc_ext_in_observation

    def _observed(self) -> list[Piece]:
        # The centers of mass of the bodies are one substep behind qpos, as in Gymnasium.
        self._centers_x = self._physics.bind("xipos")[:, 0::3]
        self._mass_shares = self._physics.model.body_mass / self._physics.model.body_mass.sum()
        self._contact_forces = self._physics.bind("cfrc_ext")
        # Number of columns to leave out of each field: those of the world, and of the free joint.
        hidden_columns = {"cinert": 10, "cvel": 6, "qfrc_actuator": 6, "cfrc_ext": 6}
        included = [name for name in hidden_columns if getattr(self.options, f"include_{name}_in_observation")]
        return super()._observed() + [Piece(self._physics.bind(name)[:, hidden_columns[name] :]) for name in included]

    def x_position(self) -> Numbers:
        """Returns the x positions of the center of mass, [N], in meters."""
        position: Numbers = self._centers_x @ self._mass_shares
        return position

    def healthy(self) -> Flags:
        """Healthy: at a healthy height."""
        return _within(self._physics.qpos[:, 2], self.options.healthy_z_range)

    def _contact_cost(self) -> Numbers | float:
        if self.options.contact_cost_weight == 0:
            return float(np.clip(0.0, *self.options.contact_cost_range))
        cost: Numbers = self.options.contact_cost_weight * _squared(self._contact_forces)
        return _clipped(cost, self.options.contact_cost_range)


class Hopper(Walking[HopperOptions]):
    """gymnasium.envs.mujoco.hopper_v5."""

    xml = "hopper.xml"
    options_class = HopperOptions

    def _observed(self) -> list[Piece]:
        return [Piece(self._positions()), Piece(self._physics.qvel, _VELOCITY_LIMITS)]

    def healthy(self) -> Flags:
        """Healthy: upright, at a healthy height, with all other state within its range."""
        qpos, options = self._physics.qpos, self.options
        upright = _within(qpos[:, 1], options.healthy_z_range) & _within(qpos[:, 2], options.healthy_angle_range)
        state = self._physics.positions_and_velocities[:, 2:]
        healthy: Flags = upright & np.logical_and.reduce(_within(state, options.healthy_state_range), axis=1)
        return healthy


class Walker2d(Walking[Walker2dOptions]):
    """gymnasium.envs.mujoco.walker2d_v5."""

    xml = "walker2d_v5.xml"
    options_class = Walker2dOptions

    def _observed(self) -> list[Piece]:
        return [Piece(self._positions()), Piece(self._physics.qvel, _VELOCITY_LIMITS)]

    def healthy(self) -> Flags:
        """Healthy: upright, at a healthy height."""
        qpos, options = self._physics.qpos, self.options
        return _within(qpos[:, 1], options.healthy_z_range) & _within(qpos[:, 2], options.healthy_angle_range)


# With few lanes a step is so short that the overhead of numpy's wrappers is noticeable: these call its ufuncs directly.


def _squared(values: Numbers) -> Numbers:
    """Returns the squared length of each row, [N]."""
    lengths: Numbers = np.vecdot(values, values)
    return lengths


def _clipped(values: Numbers, limits: Range) -> Numbers:
    low, high = limits
    clipped: Numbers = np.maximum(values, low)
    return np.minimum(clipped, high, out=clipped)


def _within(values: Numbers, limits: Range) -> Flags:
    """Whether values are strictly between the limits."""
    low, high = limits
    return (low < values) & (values < high)


TASKS: Mapping[str, type[LocomotionTask[Any]]] = {
    task.options_class.id: task for task in (Ant, Humanoid, HalfCheetah, Hopper, Walker2d)
}
