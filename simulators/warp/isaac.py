"""Computes observations (60 and 108 numbers), rewards and termination of Isaac Gym's ant and humanoid over tensors.

Formulas and constants are those of the published tasks (IsaacGymEnvs 1.5.1: tasks/ant.py, tasks/humanoid.py,
cfg/task/Ant.yaml, cfg/task/Humanoid.yaml; Makoviychuk et al. 2021, arXiv 2108.10470). The physics is MuJoCo's, not
PhysX, so returns are similar but not equal. Three definitions differ: angles are in [-pi, pi] for both bodies, the
direction to the target is the one along the ground, and foot sensors measure only contact forces.
"""

from typing import ClassVar

import torch
from torch import Tensor

from simulators.warp.models import Body
from simulators.warp.options import IsaacAntOptions, IsaacHumanoidOptions, IsaacTaskOptions
from simulators.warp.tasks import Fields, Outcome, WarpTask

_TARGET_METRES = 1000.0
"""Position of the target along x."""
_POSITION_NOISE, _VELOCITY_NOISE = 0.2, 0.1
_FACING, _UPRIGHT = 0.8, 0.93
"""Cosines above which heading and posture earn the full reward."""


class IsaacTask(WarpTask[IsaacTaskOptions]):
    """A task of either body. Joints are in the order of the model, and so are actions."""

    def __init__(self, options: IsaacTaskOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        model = body.model
        self.noise_size = 2 * model.nu
        self._feet = self._tensor(body.feet, torch.int64)
        self._low, self._high = self._tensor(model.jnt_range[1:, 0]), self._tensor(model.jnt_range[1:, 1])
        self._step_seconds = float(model.opt.timestep) * options.frame_skip
        # The joint that each motor drives, as an index among the hinges, which follow the free joint.
        self._joint_of_motor = self._tensor(model.actuator_trnid[:, 0] - 1, torch.int64)
        self._motor_of_joint = self._joint_of_motor.argsort()

    def control(self, action: Tensor) -> Tensor:
        """Reorders actions from joints to motors."""
        return action[:, self._joint_of_motor]

    def first_state(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Places the torso at rest at a fixed pose; joints get noise."""
        positions, velocities = (2 * noise - 1).float().chunk(2, dim=1)
        joints = self._first_qpos[7:] + _POSITION_NOISE * positions
        root = self._first_qpos[:7].expand(len(noise), 7)
        qpos = torch.cat([root, torch.minimum(torch.maximum(joints, self._low), self._high)], 1)
        return qpos, torch.cat([torch.zeros_like(root[:, :6]), _VELOCITY_NOISE * velocities], 1)

    def position(self) -> Tensor:
        """Returns the position of the torso, [N, 2]."""
        return self._fields.qpos[:, :2]

    def first_position(self) -> Tensor:
        """Returns the position of the torso, [N, 2]."""
        return self.position()

    def observe(self) -> Tensor:
        """Concatenates height, velocities in the torso's frame, angles, directions, joints, forces and actions."""
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
            # The rotational velocity of MuJoCo's free joint is in the body's own frame.
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
        """Adds progress, posture and survival; subtracts the costs of actions, energy and joints at their limits."""
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
        """Returns the cosine of the angle between the torso's heading and the target, along the ground."""
        to_target = self._to_target(self._fields.qpos[:, :2])
        return (forward[:, :2] * to_target).sum(1) / _length(to_target)

    def _progress(self, before: Tensor, after: Tensor) -> Tensor:
        """Returns by how much the distance to the target decreased, in meters per second.

        The published tasks subtract two potentials of about -60,000, where float32 has a resolution of 1/256. Here the
        difference of the squared distances is divided by the sum of the distances.
        """
        old, new = self._to_target(before), self._to_target(after)
        return ((after - before) * (old + new)).sum(1) / (_length(old) + _length(new)) / self._step_seconds

    def _joints(self) -> Tensor:
        """Returns joint positions, from -1 at the lower limit to 1 at the upper limit."""
        return (2 * self._fields.qpos[:, 7:] - self._high - self._low) / (self._high - self._low)

    def _actions(self) -> Tensor:
        return self._fields.ctrl[:, self._motor_of_joint]

    def _forces(self) -> list[Tensor]:
        return [self._foot_forces()]

    def _foot_forces(self) -> Tensor:
        """Returns force and torque of each foot's contacts, about its origin and in its frame: [N, 6 F]."""
        fields = self._fields
        wrench = fields.cfrc_ext[:, self._feet]
        torque, force = wrench[:, :, :3], wrench[:, :, 3:]
        # MuJoCo's torques are about the center of mass of the whole body.
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
        """Counts joints at their upper limits only, as published."""
        return (joints > 0.99).sum(1)


class IsaacHumanoid(IsaacTask):
    """IsaacGymEnvs' Humanoid: 108 numbers, 21 actions; costs are weighted by the strength of the motors."""

    _near_limit: ClassVar[float] = 0.98

    def __init__(self, options: IsaacTaskOptions, body: Body, fields: Fields) -> None:
        super().__init__(options, body, fields)
        gears = self._tensor(body.model.actuator_gear[:, 0])[self._motor_of_joint]
        self._strength = gears / gears.max()

    def _forces(self) -> list[Tensor]:
        """Adds the forces of the motors on the joints."""
        return [self._fields.qfrc_actuator[:, 6:] * self.options.contact_force_scale, self._foot_forces()]

    def _energy(self, actions: Tensor, speeds: Tensor) -> Tensor:
        return ((actions * speeds).abs() * self._strength).sum(1)

    def _at_limit(self, joints: Tensor) -> Tensor:
        """Sums, over the joints, a cost that rises from 0 near a limit to 1 at it."""
        beyond = (joints.abs() - self._near_limit).clamp(min=0.0) / (1.0 - self._near_limit)
        return (beyond * self._strength).sum(1)


TASKS: dict[type[IsaacTaskOptions], type[IsaacTask]] = {IsaacAntOptions: IsaacAnt, IsaacHumanoidOptions: IsaacHumanoid}
"""Tasks by the class of their options."""


def _axes(w: Tensor, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the rotated axes x, y and z of a quaternion: the columns of its rotation matrix, each [N, 3]."""
    forward = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], 1)
    side = torch.stack([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)], 1)
    up = torch.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], 1)
    return forward, side, up


def _length(vectors: Tensor) -> Tensor:
    """Returns the lengths [N] of vectors [N, 2]; never 0."""
    return vectors.square().sum(1).sqrt().clamp(min=1e-9)
