"""Isaac Gym's ant and humanoid over tensors: their observations (60 and 108 numbers), rewards and ends.

Formulas and constants are those of the published tasks (IsaacGymEnvs 1.5.1: tasks/ant.py, tasks/humanoid.py,
cfg/task/Ant.yaml, cfg/task/Humanoid.yaml; Makoviychuk et al. 2021, arXiv 2108.10470); the physics is MuJoCo's, not
PhysX, so that returns are alike and not equal. Three things are meant differently here: angles are in [-pi, pi] for
both bodies, the direction to the target is that along the ground, and what a foot feels is contact alone.
"""

from typing import ClassVar

import torch
from torch import Tensor

from simulators.warp.models import Body
from simulators.warp.options import IsaacAntOptions, IsaacHumanoidOptions, IsaacOptions
from simulators.warp.tasks import Fields, Outcome, Task

_TARGET_METRES = 1000.0
"""Where they are to go, along x."""
_POSITION_NOISE, _VELOCITY_NOISE = 0.2, 0.1
_FACING, _UPRIGHT = 0.8, 0.93
"""Cosines from which on heading and posture are rewarded in full."""


class IsaacTask(Task[IsaacOptions]):
    """What both have in common. Joints are in the order of the model, and so are actions."""

    def __init__(self, options: IsaacOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        model = body.model
        self.noise_size = 2 * model.nu
        self._feet = self._tensor(body.feet, torch.int64)
        self._low, self._high = self._tensor(model.jnt_range[1:, 0]), self._tensor(model.jnt_range[1:, 1])
        self._step_seconds = float(model.opt.timestep) * options.frame_skip
        # Which joint a motor drives: its place among the hinges, which come after the free joint.
        self._joint_of_motor = self._tensor(model.actuator_trnid[:, 0] - 1, torch.int64)
        self._motor_of_joint = self._joint_of_motor.argsort()

    def control(self, action: Tensor) -> Tensor:
        """Joint by joint."""
        return action[:, self._joint_of_motor]

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The torso is placed and at rest, the joints are not."""
        positions, velocities = (2 * noise - 1).float().chunk(2, dim=1)
        joints = self._first_qpos[7:] + _POSITION_NOISE * positions
        root = self._first_qpos[:7].expand(len(noise), 7)
        qpos = torch.cat([root, torch.minimum(torch.maximum(joints, self._low), self._high)], 1)
        return qpos, torch.cat([torch.zeros_like(root[:, :6]), _VELOCITY_NOISE * velocities], 1)

    def position(self) -> Tensor:
        """[N, 2] of the torso."""
        return self._fields.qpos[:, :2]

    def first_position(self) -> Tensor:
        """[N, 2] of the torso."""
        return self.position()

    def observe(self) -> Tensor:
        """Height, velocities in the torso's frame, angles, directions, joints, forces, actions."""
        fields, options = self._fields, self.options
        w, x, y, z = fields.qpos[:, 3:7].unbind(1)
        forward, side, up = _axes(w, x, y, z)
        velocity = fields.qvel[:, :3]
        roll, yaw = torch.atan2(side[:, 2], up[:, 2]), torch.atan2(forward[:, 1], forward[:, 0])
        to_target = self._to_target(fields.qpos[:, :2])
        off = torch.atan2(to_target[:, 1], to_target[:, 0]) - yaw
        pieces = [
            fields.qpos[:, 2:3],
            torch.stack([(axis * velocity).sum(1) for axis in (forward, side, up)], 1),
            # MuJoCo's free joint turns in its own frame.
            fields.qvel[:, 3:6] * options.angular_velocity_scale,
            torch.stack([yaw, roll, torch.atan2(off.sin(), off.cos())], 1),
            torch.stack([up[:, 2], self._heading(forward)], 1),
            self._joints(),
            fields.qvel[:, 6:] * options.dof_velocity_scale,
            *self._forces(),
            self._actions(),
        ]
        return torch.cat(pieces, 1)

    def judge(self, before: Tensor, after: Tensor) -> Outcome:
        """Progress, posture and survival, less what actions, energy and bent joints cost."""
        options, fields = self.options, self._fields
        w, x, y, z = fields.qpos[:, 3:7].unbind(1)
        forward, _, up = _axes(w, x, y, z)
        actions = self._actions()
        reward = (
            self._progress(before, after)
            + options.alive_reward
            + options.up_weight * (up[:, 2] > _UPRIGHT)
            + options.heading_weight * (self._heading(forward) / _FACING).clamp(max=1.0)
            - options.actions_cost * actions.square().sum(1)
            - options.energy_cost * self._energy(actions, fields.qvel[:, 6:] * options.dof_velocity_scale)
            - options.joints_at_limit_cost * self._at_limit(self._joints())
        )
        fallen = fields.qpos[:, 2] < options.termination_height
        return Outcome(reward.masked_fill(fallen, options.death_cost), fallen)

    def _to_target(self, position: Tensor) -> Tensor:
        return torch.stack([_TARGET_METRES - position[:, 0], -position[:, 1]], 1)

    def _heading(self, forward: Tensor) -> Tensor:
        """Cosine of the angle between what the torso faces and the target, seen from above."""
        to_target = self._to_target(self._fields.qpos[:, :2])
        return (forward[:, :2] * to_target).sum(1) / _length(to_target)

    def _progress(self, before: Tensor, after: Tensor) -> Tensor:
        """By how much the distance to the target fell, in metres per second.

        The tasks subtract two potentials of -60,000, of which float32 has every 1/256; here the difference of the
        squared distances is divided by their sum.
        """
        old, new = self._to_target(before), self._to_target(after)
        return ((after - before) * (old + new)).sum(1) / (_length(old) + _length(new)) / self._step_seconds

    def _joints(self) -> Tensor:
        """Positions from -1 at the lower limit to 1 at the upper."""
        return (2 * self._fields.qpos[:, 7:] - self._high - self._low) / (self._high - self._low)

    def _actions(self) -> Tensor:
        return self._fields.ctrl[:, self._motor_of_joint]

    def _forces(self) -> list[Tensor]:
        return [self._foot_forces()]

    def _foot_forces(self) -> Tensor:
        """[N, 6 F]: force and torque of the contacts of each foot, about its origin and in its frame."""
        fields = self._fields
        wrench = fields.cfrc_ext[:, self._feet]
        torque, force = wrench[:, :, :3], wrench[:, :, 3:]
        # MuJoCo's are about the centre of mass of the whole body.
        arm = fields.subtree_com[:, 1:2] - fields.xpos[:, self._feet]
        torque = torque + torch.linalg.cross(arm, force)
        frame = fields.xmat[:, self._feet]
        own = [(frame * vector[..., None]).sum(2) for vector in (force, torque)]
        return torch.cat(own, 2).flatten(1) * self.options.contact_force_scale

    def _energy(self, actions: Tensor, speeds: Tensor) -> Tensor:
        raise NotImplementedError

    def _at_limit(self, joints: Tensor) -> Tensor:
        raise NotImplementedError


class IsaacAnt(IsaacTask):
    """IsaacGymEnvs' Ant: 60 numbers, 8 actions."""

    def _energy(self, actions: Tensor, speeds: Tensor) -> Tensor:
        return (actions * speeds).abs().sum(1)

    def _at_limit(self, joints: Tensor) -> Tensor:
        """Of upper limits alone, as published."""
        return (joints > 0.99).sum(1)


class IsaacHumanoid(IsaacTask):
    """IsaacGymEnvs' Humanoid: 108 numbers, 21 actions; what strong motors do counts more."""

    _near_limit: ClassVar[float] = 0.98

    def __init__(self, options: IsaacOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        gears = self._tensor(body.model.actuator_gear[:, 0])[self._motor_of_joint]
        self._strength = gears / gears.max()

    def _forces(self) -> list[Tensor]:
        """Of the motors on the joints too."""
        return [self._fields.qfrc_actuator[:, 6:] * self.options.contact_force_scale, self._foot_forces()]

    def _energy(self, actions: Tensor, speeds: Tensor) -> Tensor:
        return ((actions * speeds).abs() * self._strength).sum(1)

    def _at_limit(self, joints: Tensor) -> Tensor:
        """Rising from 0 near a limit to 1 at it."""
        beyond = (joints.abs() - self._near_limit).clamp(min=0.0) / (1.0 - self._near_limit)
        return (beyond * self._strength).sum(1)


TASKS: dict[type[IsaacOptions], type[IsaacTask]] = {IsaacAntOptions: IsaacAnt, IsaacHumanoidOptions: IsaacHumanoid}
"""By their options."""


def _axes(w: Tensor, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a quaternion turns the axes x, y and z: the columns of its matrix, each [N, 3]."""
    forward = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], 1)
    side = torch.stack([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)], 1)
    up = torch.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], 1)
    return forward, side, up


def _length(vectors: Tensor) -> Tensor:
    """[N], of [N, 2]; never 0."""
    return vectors.square().sum(1).sqrt().clamp(min=1e-9)
