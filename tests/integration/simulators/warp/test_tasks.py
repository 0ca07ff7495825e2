"""Compares what torch computes from a state with the numpy version of the same formulas, and with a plain one."""

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from simulators import make
from simulators.mujoco.simulator import MujocoSimulator
from simulators.warp.isaac import TASKS as ISAAC_TASKS
from simulators.warp.isaac import IsaacTask
from simulators.warp.models import Body, load_body
from simulators.warp.options import parse_warp_options
from simulators.warp.tasks import Fields, GymnasiumAnt, GymnasiumHumanoid, WarpTask

NAMES = [field for field in Fields.__dataclass_fields__ if field != "qacc_warmstart"]
LANES = 6


def fields_of(arrays: dict[str, Any], model: mujoco.MjModel) -> Fields:
    """Makes fields from flat arrays, in the shapes that MuJoCo Warp has."""
    shapes = {"xpos": (3,), "xmat": (3, 3), "xipos": (3,), "subtree_com": (3,), "cinert": (10,)}
    shapes |= {"cvel": (6,), "cfrc_ext": (6,)}
    tensors = {name: torch.tensor(array, dtype=torch.float32) for name, array in arrays.items()}
    for name, shape in shapes.items():
        tensors[name] = tensors[name].view(-1, model.nbody, *shape)
    return Fields(**tensors, qacc_warmstart=torch.zeros_like(tensors["qvel"]))


def gymnasium_task(body: str, options: dict[str, object], arrays: dict[str, Any]) -> WarpTask[Any]:
    task_class: type[WarpTask[Any]] = GymnasiumAnt if body == "ant" else GymnasiumHumanoid
    loaded = load_body(body, "gymnasium")
    return task_class(parse_warp_options(options, body), loaded, fields_of(arrays, loaded.model))


VARIANTS: list[tuple[str, str, dict[str, object]]] = [
    ("ant", "Ant-v5", {}),
    ("ant", "Ant-v5", {"include_cfrc_ext_in_observation": False, "frame_skip": 2, "healthy_z_range": [0.6, 0.9]}),
    ("ant", "Ant-v5", {"contact_cost_weight": 0.1, "contact_force_range": [-50, 50], "healthy_reward": 0.25}),
    ("ant", "Ant-v5", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 2.0}),
    ("humanoid", "Humanoid-v5", {}),
    ("humanoid", "Humanoid-v5", {"include_cinert_in_observation": False, "include_cvel_in_observation": False}),
    ("humanoid", "Humanoid-v5", {"include_qfrc_actuator_in_observation": False, "forward_reward_weight": 3}),
    ("humanoid", "Humanoid-v5", {"contact_cost_weight": 1e-3, "contact_cost_range": [0.1, 0.5]}),
    ("humanoid", "Humanoid-v5", {"terminate_when_unhealthy": False, "include_cfrc_ext_in_observation": False}),
]


@pytest.mark.parametrize(("body", "task", "options"), VARIANTS)
def test_observations_rewards_and_terminations_equal_those_of_numpy(
    body: str, task: str, options: dict[str, object]
) -> None:
    theirs = make(f"mujoco:{task}", LANES, options)
    assert isinstance(theirs, MujocoSimulator)
    physics = theirs.physics
    bound = {name: physics.bind(name) for name in NAMES if name not in ("qpos", "qvel", "ctrl")}
    generator = torch.Generator().manual_seed(4)
    low, high = theirs.action_space.low or (), theirs.action_space.high or ()
    ends = 0
    for _ in range(40):
        action = torch.rand(LANES, len(low), generator=generator) * (high[0] - low[0]) + low[0]
        before = theirs._x_position.copy()
        # The state that the step leaves, before ended lanes are reset.
        state: dict[str, Any] = {}
        begin = theirs._begin_episodes

        def keep_and_begin(lanes: Any, state: dict[str, Any] = state, begin: Any = begin) -> None:
            state.update(snapshot(physics, bound))
            begin(lanes)

        theirs._begin_episodes = keep_and_begin  # type: ignore[method-assign]
        step = theirs.step(action)
        theirs._begin_episodes = begin  # type: ignore[method-assign]
        ours = gymnasium_task(body, options, state or snapshot(physics, bound))
        ended = (step.terminated | step.truncated)[:, None]
        seen = torch.where(ended, step.final_observation, step.observation)
        torch.testing.assert_close(ours.observe(), seen, rtol=1e-6, atol=1e-6)
        outcome = ours.judge(torch.tensor(before, dtype=torch.float32), ours.position())
        # A speed is the difference of two positions in single precision, divided by the duration of a step.
        torch.testing.assert_close(outcome.reward, step.reward, rtol=2e-5, atol=2e-4)
        assert torch.equal(outcome.terminated, step.terminated)
        ends += int(step.terminated.sum())
    assert (ends > 0) == options.get("terminate_when_unhealthy", True)


def snapshot(physics: Any, bound: dict[str, Any]) -> dict[str, Any]:
    live = {"qpos": physics.qpos, "qvel": physics.qvel, "ctrl": physics.ctrl}
    return {name: array.copy() for name, array in (live | bound).items()}


@pytest.mark.parametrize("body", ["ant", "humanoid"])
def test_first_states_equal_those_of_numpy(body: str) -> None:
    theirs = make(f"mujoco:{body.capitalize()}-v5", LANES)
    assert isinstance(theirs, MujocoSimulator)
    theirs.reset(11)
    ours = gymnasium_task(body, {}, snapshot(theirs.physics, bound_of(theirs)))
    noise = torch.from_numpy(theirs._noise.uniform(np.arange(LANES), np.zeros(LANES, np.int64), ours.noise_size))
    qpos, qvel = ours.first_state(noise)
    torch.testing.assert_close(qpos, torch.tensor(theirs.physics.qpos, dtype=torch.float32), rtol=0, atol=2e-7)
    torch.testing.assert_close(qvel, torch.tensor(theirs.physics.qvel, dtype=torch.float32), rtol=0, atol=2e-7)


def bound_of(simulator: MujocoSimulator) -> dict[str, Any]:
    return {name: simulator.physics.bind(name) for name in NAMES if name not in ("qpos", "qvel", "ctrl")}


class Isaac:
    """States of one of Isaac Gym's bodies, and its formulas in float64, per lane and joint."""

    def __init__(self, name: str, options: dict[str, object] | None = None) -> None:
        self.body: Body = load_body(name, "isaac")
        self.options = parse_warp_options({"style": "isaac", **(options or {})}, name)
        model = self.body.model
        generator = np.random.default_rng(3)
        self.data = []
        for lane in range(LANES):
            data = mujoco.MjData(model)
            data.qpos[:] = self.body.qpos
            data.qpos[:2] = generator.normal(0, 5, 2)
            if lane % 2:
                data.qpos[2] = self.options.termination_height + generator.uniform(-0.1, 0.0)
            # Slightly tilted, or in any orientation.
            quaternion = np.array([1.0, 0, 0, 0]) + (0.1 if lane < 3 else 1.0) * generator.normal(size=4)
            data.qpos[3:7] = quaternion / np.linalg.norm(quaternion)
            low, high = model.jnt_range[1:].T
            # Some joints at their limits.
            data.qpos[7:] = np.clip(generator.uniform(low - 0.2, high + 0.2), low, high)
            data.qvel[:] = generator.normal(0, 2, model.nv)
            data.ctrl[:] = generator.uniform(-1, 1, model.nu)
            mujoco.mj_forward(model, data)
            mujoco.mj_rnePostConstraint(model, data)
            self.data.append(data)
        arrays = {name: np.stack([getattr(data, name).ravel() for data in self.data]) for name in NAMES}
        task_class = ISAAC_TASKS[type(self.options)]
        self.task: IsaacTask = task_class(self.options, self.body, fields_of(arrays, model))

    def joints(self, lane: int) -> list[tuple[float, float, float, float, float]]:
        """Returns for each joint: position between the limits, speed, action, gear, motor force."""
        model, data, rows = self.body.model, self.data[lane], []
        for joint in range(1, model.njnt):
            low, high = model.jnt_range[joint]
            (motor,) = np.flatnonzero(model.actuator_trnid[:, 0] == joint)
            place = 2 * (data.qpos[model.jnt_qposadr[joint]] - low) / (high - low) - 1
            speed, force = (values[model.jnt_dofadr[joint]] for values in (data.qvel, data.qfrc_actuator))
            rows.append((place, speed, data.ctrl[motor], model.actuator_gear[motor, 0], force))
        return rows

    def posture(self, lane: int) -> tuple[np.ndarray, float, float]:
        """Returns the torso's matrix, its heading and how upright it is."""
        data = self.data[lane]
        frame = np.zeros(9)
        mujoco.mju_quat2Mat(frame, data.qpos[3:7])
        frame = frame.reshape(3, 3)
        to_target = np.array([1000.0, 0.0]) - data.qpos[:2]
        return frame, float(frame[:2, 0] @ to_target / np.linalg.norm(to_target)), float(frame[2, 2])

    def observation(self, lane: int) -> list[float]:
        data, options = self.data[lane], self.options
        frame, heading, upright = self.posture(lane)
        yaw, roll = math.atan2(frame[1, 0], frame[0, 0]), math.atan2(frame[2, 1], frame[2, 2])
        to_target = math.atan2(-data.qpos[1], 1000.0 - data.qpos[0])
        off = (to_target - yaw + math.pi) % (2 * math.pi) - math.pi
        # MuJoCo keeps the free joint's linear velocity in the world's frame and its angular velocity in the body's.
        turning = frame @ data.qvel[3:6]
        seen = [data.qpos[2], *(frame.T @ data.qvel[:3]), *(frame.T @ turning * options.angular_velocity_scale)]
        seen += [yaw, roll, off, upright, heading]
        joints = self.joints(lane)
        seen += [place for place, *_ in joints] + [speed * options.dof_velocity_scale for _, speed, *_ in joints]
        if options.body == "humanoid":
            seen += [force * options.contact_force_scale for *_, force in joints]
        for foot in self.body.feet:
            seen += [number * options.contact_force_scale for number in self.contact(lane, foot)]
        return seen + [action for _, _, action, *_ in joints]

    def contact(self, lane: int, foot: int) -> np.ndarray:
        """Returns force and torque on a foot in its own frame, summed over its contacts."""
        model, data = self.body.model, self.data[lane]
        total = np.zeros(6)
        for index, contact in enumerate(data.contact):
            bodies = [model.geom_bodyid[geom] for geom in contact.geom]
            if foot in bodies:
                wrench = np.zeros(6)
                mujoco.mj_contactForce(model, data, index, wrench)
                # On the second body; the first one gets the opposite force.
                sign = 1.0 if bodies[1] == foot else -1.0
                force, torque = (sign * contact.frame.reshape(3, 3).T @ part for part in (wrench[:3], wrench[3:]))
                total += np.concatenate([force, torque + np.cross(contact.pos - data.xpos[foot], force)])
        frame = data.xmat[foot].reshape(3, 3)
        return np.concatenate([frame.T @ total[:3], frame.T @ total[3:]])

    def reward(self, lane: int, before: np.ndarray) -> float:
        data, options, joints = self.data[lane], self.options, self.joints(lane)
        _, heading, upright = self.posture(lane)
        if data.qpos[2] < options.termination_height:
            return float(options.death_cost)
        target = np.array([1000.0, 0.0])
        potentials = [-60 * np.linalg.norm(target - place) for place in (before, data.qpos[:2])]
        reward = potentials[1] - potentials[0] + options.alive_reward
        reward += options.heading_weight * (1.0 if heading > 0.8 else heading / 0.8)
        reward += options.up_weight if upright > 0.93 else 0.0
        strongest = max(gear for *_, gear, _ in joints)
        for place, speed, action, gear, _ in joints:
            share = gear / strongest if options.body == "humanoid" else 1.0
            reward -= options.actions_cost * action**2
            reward -= options.energy_cost * abs(action * speed * options.dof_velocity_scale) * share
            if options.body == "humanoid" and abs(place) > 0.98:
                reward -= options.joints_at_limit_cost * (abs(place) - 0.98) / 0.02 * share
            elif options.body == "ant" and place > 0.99:
                reward -= options.joints_at_limit_cost
        return float(reward)


@pytest.mark.parametrize(("name", "size"), [("ant", 60), ("humanoid", 108)])
def test_isaac_gyms_observations_are_as_published(name: str, size: int) -> None:
    isaac = Isaac(name)
    seen = isaac.task.observe()
    assert seen.shape == (LANES, size)
    expected = torch.tensor([isaac.observation(lane) for lane in range(LANES)], dtype=torch.float32)
    assert any(np.abs(isaac.contact(lane, foot)).max() > 1 for lane in range(LANES) for foot in isaac.body.feet)
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ant", "humanoid"])
def test_isaac_gyms_rewards_and_terminations_are_as_published(name: str) -> None:
    isaac = Isaac(name)
    after = np.stack([data.qpos[:2] for data in isaac.data])
    before = after - np.random.default_rng(5).normal(0, 0.05, after.shape)
    outcome = isaac.task.judge(torch.tensor(before, dtype=torch.float32), isaac.task.position())
    # In single precision the two positions are known to 5e-7, and the reward contains 60 times their difference.
    expected = [isaac.reward(lane, before[lane]) for lane in range(LANES)]
    torch.testing.assert_close(outcome.reward, torch.tensor(expected, dtype=torch.float32), rtol=1e-4, atol=2e-4)
    fallen = [data.qpos[2] < isaac.options.termination_height for data in isaac.data]
    assert outcome.terminated.tolist() == fallen
    assert len(set(fallen)) == 2


def test_isaac_gyms_progress_is_finer_than_a_difference_of_potentials_in_single_precision() -> None:
    isaac = Isaac("ant")
    before = torch.zeros(LANES, 2)
    after = torch.full((LANES, 2), 1e-5)
    torch.testing.assert_close(isaac.task._progress(before, after), torch.full((LANES,), 6e-4), rtol=1e-3, atol=0)


def test_isaac_gyms_actions_are_in_the_order_of_the_joints() -> None:
    isaac = Isaac("ant")
    model, action = isaac.body.model, torch.arange(8.0).repeat(LANES, 1)
    control = isaac.task.control(action)[0].tolist()
    assert control != sorted(control)
    assert [control[motor] for motor in range(8)] == [model.actuator_trnid[motor, 0] - 1 for motor in range(8)]


@pytest.mark.parametrize("name", ["ant", "humanoid"])
def test_isaac_gyms_bodies_start_at_rest_with_their_joints_within_their_limits(name: str) -> None:
    isaac = Isaac(name)
    noise = torch.rand(500, isaac.task.noise_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    qpos, qvel = isaac.task.first_state(noise)
    low, high = (torch.tensor(limit, dtype=torch.float32) for limit in isaac.body.model.jnt_range[1:].T)
    assert ((qpos[:, 7:] >= low) & (qpos[:, 7:] <= high)).all()
    assert torch.equal(qpos[:, :7], torch.tensor(isaac.body.qpos[:7], dtype=torch.float32).expand(500, 7))
    assert qpos[:, 2].min() > isaac.options.termination_height
    assert qvel[:, :6].abs().max() == 0
    assert 0.099 < qvel[:, 6:].abs().max() <= 0.1
    spread = qpos[:, 7:].max(0).values - qpos[:, 7:].min(0).values
    assert ((spread > 0.19) & (spread < 0.4)).all()


def test_isaac_gyms_options_change_the_terms_they_name() -> None:
    plain = Isaac("ant")
    after = plain.task.position()
    reward: Tensor = plain.task.judge(after, after).reward
    standing = ~plain.task.judge(after, after).terminated
    changed = Isaac("ant", {"alive_reward": 1.5, "death_cost": -7.0}).task.judge(after, after).reward
    torch.testing.assert_close(changed[standing], reward[standing] + 1.0)
    assert (changed[~standing] == -7.0).all()
