"""Gymnasium's ant and humanoid (their version 5) over tensors: what is observed, rewarded and healthy.

The formulas are those of `simulators.mujoco.tasks`, where numpy computes them for processors, in float32 and without a
branch on what a tensor holds, so that a GPU is never waited for. Nothing here steps or resets.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from simulators.warp.models import Body
from simulators.warp.noise import normal
from simulators.warp.options import AntOptions, HumanoidOptions, WarpOptions

_Options = TypeVar("_Options", bound=WarpOptions)
_TORSO = 1
"""The first body after the world."""


@dataclass(frozen=True)
class Fields:
    """What a task sees of the physics: [N, ...] float32, live, with MuJoCo's names and shapes."""

    qpos: Tensor
    qvel: Tensor
    ctrl: Tensor
    qacc_warmstart: Tensor
    xpos: Tensor
    xmat: Tensor
    xipos: Tensor
    subtree_com: Tensor
    cinert: Tensor
    cvel: Tensor
    qfrc_actuator: Tensor
    cfrc_ext: Tensor


class Outcome(NamedTuple):
    """What one step brought to every lane."""

    reward: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool."""


class Task(Generic[_Options]):
    """One task over N lanes; all it returns is of the state that the last step left.

    Attributes:
        options: What the user set.
        noise_size: Uniform numbers that a first state is made of.
    """

    needs_kinematics: ClassVar[bool] = False
    """A first observation holds more than positions, velocities and what is 0 at rest."""
    noise_size: int

    def __init__(self, options: _Options, body: Body, fields: Fields) -> None:
        self.options = options
        self._fields = fields
        self._model = body.model
        self._first_qpos = self._tensor(body.qpos)

    def _tensor(self, values: object, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(self._fields.qpos.device)

    @staticmethod
    def needs_contact_forces(options: Any) -> bool:
        """Whether anything in the task depends on them."""
        return True

    def control(self, action: Tensor) -> Tensor:
        """What the motors are told, [N, nu], of an action [N, nu]."""
        return action

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [N, nq] and velocities [N, nv] in which episodes begin, of numbers [N, noise_size] in [0, 1)."""
        raise NotImplementedError

    def position(self) -> Tensor:
        """What moves forward, in metres: [N], or [N, 2] along the ground."""
        raise NotImplementedError

    def first_position(self) -> Tensor:
        """The same of lanes whose first state was written and not yet stepped from."""
        return self._fields.qpos[:, 0]

    def observe(self) -> Tensor:
        """[N, size]."""
        raise NotImplementedError

    def judge(self, before: Tensor, after: Tensor) -> Outcome:
        """Of a step from one `position` to another, with the actions that `ctrl` holds."""
        raise NotImplementedError


class GymnasiumAnt(Task[AntOptions]):
    """gymnasium.envs.mujoco.ant_v5."""

    def __init__(self, options: AntOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        self.noise_size = body.model.nq + 2 * body.model.nv

    @staticmethod
    def needs_contact_forces(options: AntOptions) -> bool:
        """In the cost or in the observation."""
        return options.contact_cost_weight != 0 or options.include_cfrc_ext_in_observation

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities."""
        positions, velocities = noise[:, : self._model.nq], noise[:, self._model.nq :]
        return _around(self._first_qpos, positions, self.options.reset_noise_scale), (
            self.options.reset_noise_scale * normal(velocities)
        ).float()

    def position(self) -> Tensor:
        """Of the torso, a substep behind qpos, as in Gymnasium."""
        return self._fields.xpos[:, _TORSO, 0]

    def observe(self) -> Tensor:
        """Positions, velocities and clipped contact forces."""
        pieces = [_positions(self._fields, self.options), self._fields.qvel]
        if self.options.include_cfrc_ext_in_observation:
            pieces.append(self._fields.cfrc_ext[:, 1:].flatten(1).clamp(*self.options.contact_force_range))
        return torch.cat(pieces, 1)

    def judge(self, before: Tensor, after: Tensor) -> Outcome:
        """Speed and health, less what action and contact cost."""
        options, fields = self.options, self._fields
        height, (low, high) = fields.qpos[:, 2], options.healthy_z_range
        # A lane that is nowhere is not healthy either: the simulator sees to that for all tasks.
        healthy = (low <= height) & (height <= high)
        forces = fields.cfrc_ext.flatten(1).clamp(*options.contact_force_range)
        cost = options.ctrl_cost_weight * _squared(fields.ctrl) + options.contact_cost_weight * _squared(forces)
        return _outcome(options, (after - before) / _step_seconds(self._model, options), healthy, cost)


class GymnasiumHumanoid(Task[HumanoidOptions]):
    """gymnasium.envs.mujoco.humanoid_v5."""

    needs_kinematics = True

    def __init__(self, options: HumanoidOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        self.noise_size = body.model.nq + body.model.nv
        self._mass_shares = self._tensor(body.model.body_mass / body.model.body_mass.sum())

    @staticmethod
    def needs_contact_forces(options: HumanoidOptions) -> bool:
        """In the cost or in the observation."""
        return options.contact_cost_weight != 0 or options.include_cfrc_ext_in_observation

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform."""
        positions, velocities = noise[:, : self._model.nq], noise[:, self._model.nq :]
        scale = self.options.reset_noise_scale
        return _around(self._first_qpos, positions, scale), (scale * (2 * velocities - 1)).float()

    def position(self) -> Tensor:
        """Of the centre of mass, a substep behind qpos, as in Gymnasium."""
        return (self._fields.xipos[:, :, 0] * self._mass_shares).sum(1)

    def first_position(self) -> Tensor:
        """Kinematics were computed."""
        return self.position()

    def observe(self) -> Tensor:
        """Positions, velocities, inertias, velocities and forces of the bodies, forces of the motors."""
        fields, options = self._fields, self.options
        pieces = [_positions(fields, options), fields.qvel]
        # Without the world, and without the free joint.
        if options.include_cinert_in_observation:
            pieces.append(fields.cinert[:, 1:].flatten(1))
        if options.include_cvel_in_observation:
            pieces.append(fields.cvel[:, 1:].flatten(1))
        if options.include_qfrc_actuator_in_observation:
            pieces.append(fields.qfrc_actuator[:, 6:])
        if options.include_cfrc_ext_in_observation:
            pieces.append(fields.cfrc_ext[:, 1:].flatten(1))
        return torch.cat(pieces, 1)

    def judge(self, before: Tensor, after: Tensor) -> Outcome:
        """Speed and health, less what action and contact cost."""
        options, fields = self.options, self._fields
        height, (low, high) = fields.qpos[:, 2], options.healthy_z_range
        healthy = (low < height) & (height < high)
        forces = options.contact_cost_weight * _squared(fields.cfrc_ext.flatten(1))
        cost = options.ctrl_cost_weight * _squared(fields.ctrl) + forces.clamp(*options.contact_cost_range)
        return _outcome(options, (after - before) / _step_seconds(self._model, options), healthy, cost)


def _positions(fields: Fields, options: AntOptions | HumanoidOptions) -> Tensor:
    return fields.qpos[:, 2 if options.exclude_current_positions_from_observation else 0 :]


def _around(state: Tensor, noise: Tensor, scale: float) -> Tensor:
    return (state + scale * (2 * noise - 1)).float()


def _step_seconds(model: object, options: AntOptions | HumanoidOptions) -> float:
    return float(model.opt.timestep) * options.frame_skip  # type: ignore[attr-defined]


def _squared(values: Tensor) -> Tensor:
    """Squared length of each row, [N]."""
    return values.square().sum(1)


def _outcome(options: AntOptions | HumanoidOptions, speed: Tensor, healthy: Tensor, cost: Tensor) -> Outcome:
    reward = options.forward_reward_weight * speed + options.healthy_reward * healthy - cost
    terminated = ~healthy if options.terminate_when_unhealthy else torch.zeros_like(healthy)
    return Outcome(reward, terminated)
