"""Computes observations, rewards and health of Gymnasium's ant and humanoid (version 5) over tensors.

The formulas are those of `simulators.mujoco.tasks`, which computes them by numpy. Here they are in float32 and never
branch on the contents of a tensor, so the host never waits for a GPU. Nothing here steps or resets.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from simulators.warp.models import Body
from simulators.warp.noise import normal
from simulators.warp.options import WarpAntOptions, WarpHumanoidOptions, WarpOptions

_Options = TypeVar("_Options", bound=WarpOptions)
_TORSO = 1
"""The first body after the world."""


@dataclass(frozen=True)
class Fields:
    """The fields of the physics that tasks read: [N, ...] float32, live, with MuJoCo's names and shapes."""

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
    """The rewards and terminations of one step."""

    reward: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool."""


class WarpTask(Generic[_Options]):
    """One task over N lanes; every result belongs to the state that the last step left.

    Attributes:
        options: The user's options.
        noise_size: Number of uniform numbers needed for a first state.
    """

    needs_kinematics: ClassVar[bool] = False
    """Whether a first observation depends on more than positions, velocities and fields that are 0 at rest."""
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
        """Whether the observation or the reward depends on contact forces."""
        return True

    def control(self, action: Tensor) -> Tensor:
        """Computes the commands of the motors, [N, nu], from actions [N, nu]."""
        return action

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Computes first states, positions [N, nq] and velocities [N, nv], from noise [N, noise_size] in [0, 1)."""
        raise NotImplementedError

    def position(self) -> Tensor:
        """Returns the positions by which progress is measured, in meters: [N], or [N, 2] along the ground."""
        raise NotImplementedError

    def first_position(self) -> Tensor:
        """Returns the same positions for lanes whose first state was written but not stepped yet."""
        return self._fields.qpos[:, 0]

    def observe(self) -> Tensor:
        """Returns the observations, [N, size]."""
        raise NotImplementedError

    def judge(self, before: Tensor, after: Tensor) -> Outcome:
        """Rewards a step from one `position` to another, with the actions in `ctrl`."""
        raise NotImplementedError


class GymnasiumAnt(WarpTask[WarpAntOptions]):
    """gymnasium.envs.mujoco.ant_v5."""

    def __init__(self, options: WarpAntOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        self.noise_size = body.model.nq + 2 * body.model.nv

    @staticmethod
    def needs_contact_forces(options: WarpAntOptions) -> bool:
        """See WarpTask: they appear in the cost and in the observation."""
        return options.contact_cost_weight != 0 or options.include_cfrc_ext_in_observation

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws uniform positions and normal velocities."""
        positions, velocities = noise[:, : self._model.nq], noise[:, self._model.nq :]
        return _around(self._first_qpos, positions, self.options.reset_noise_scale), (
            self.options.reset_noise_scale * normal(velocities)
        ).float()

    def position(self) -> Tensor:
        """Returns the x positions of the torso, one substep behind qpos, as in Gymnasium."""
        return self._fields.xpos[:, _TORSO, 0]

    def observe(self) -> Tensor:
        """Concatenates positions, velocities and clipped contact forces."""
        pieces = [_positions(self._fields, self.options), self._fields.qvel]
        if self.options.include_cfrc_ext_in_observation:
            pieces.append(self._fields.cfrc_ext[:, 1:].flatten(1).clamp(*self.options.contact_force_range))
        return torch.cat(pieces, 1)

    def judge(self, before: Tensor, after: Tensor) -> Outcome:
        """Adds speed and health; subtracts the costs of actions and contacts."""
        options, fields = self.options, self._fields
        height, (low, high) = fields.qpos[:, 2], options.healthy_z_range
        # Gymnasium also requires a finite state for health; WarpSimulator checks that for all tasks.
        healthy = (low <= height) & (height <= high)
        forces = fields.cfrc_ext.flatten(1).clamp(*options.contact_force_range)
        cost = options.ctrl_cost_weight * _squared(fields.ctrl) + options.contact_cost_weight * _squared(forces)
        return _outcome(options, (after - before) / _step_seconds(self._model, options), healthy, cost)


class GymnasiumHumanoid(WarpTask[WarpHumanoidOptions]):
    """gymnasium.envs.mujoco.humanoid_v5."""

    needs_kinematics = True

    def __init__(self, options: WarpHumanoidOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        self.noise_size = body.model.nq + body.model.nv
        self._mass_shares = self._tensor(body.model.body_mass / body.model.body_mass.sum())

    @staticmethod
    def needs_contact_forces(options: WarpHumanoidOptions) -> bool:
        """See WarpTask: they appear in the cost and in the observation."""
        return options.contact_cost_weight != 0 or options.include_cfrc_ext_in_observation

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws uniform positions and velocities."""
        positions, velocities = noise[:, : self._model.nq], noise[:, self._model.nq :]
        scale = self.options.reset_noise_scale
        return _around(self._first_qpos, positions, scale), (scale * (2 * velocities - 1)).float()

    def position(self) -> Tensor:
        """Returns the x positions of the center of mass, one substep behind qpos, as in Gymnasium."""
        return (self._fields.xipos[:, :, 0] * self._mass_shares).sum(1)

    def first_position(self) -> Tensor:
        """Returns `position`: the kinematics of first states were computed."""
        return self.position()

    def observe(self) -> Tensor:
        """Concatenates positions, velocities, the bodies' inertias, velocities and forces, and the motors' forces."""
        fields, options = self._fields, self.options
        pieces = [_positions(fields, options), fields.qvel]
        # Without the columns of the world and of the free joint.
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
        """Adds speed and health; subtracts the costs of actions and contacts."""
        options, fields = self.options, self._fields
        height, (low, high) = fields.qpos[:, 2], options.healthy_z_range
        healthy = (low < height) & (height < high)
        forces = options.contact_cost_weight * _squared(fields.cfrc_ext.flatten(1))
        cost = options.ctrl_cost_weight * _squared(fields.ctrl) + forces.clamp(*options.contact_cost_range)
        return _outcome(options, (after - before) / _step_seconds(self._model, options), healthy, cost)


def _positions(fields: Fields, options: WarpAntOptions | WarpHumanoidOptions) -> Tensor:
    return fields.qpos[:, 2 if options.exclude_current_positions_from_observation else 0 :]


def _around(state: Tensor, noise: Tensor, scale: float) -> Tensor:
    return (state + scale * (2 * noise - 1)).float()


def _step_seconds(model: object, options: WarpAntOptions | WarpHumanoidOptions) -> float:
    return float(model.opt.timestep) * options.frame_skip  # type: ignore[attr-defined]


def _squared(values: Tensor) -> Tensor:
    """Returns the squared length of each row, [N]."""
    return values.square().sum(1)


def _outcome(options: WarpAntOptions | WarpHumanoidOptions, speed: Tensor, healthy: Tensor, cost: Tensor) -> Outcome:
    reward = options.forward_reward_weight * speed + options.healthy_reward * healthy - cost
    terminated = ~healthy if options.terminate_when_unhealthy else torch.zeros_like(healthy)
    return Outcome(reward, terminated)
