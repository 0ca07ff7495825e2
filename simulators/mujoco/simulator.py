"""Steps Gymnasium's MuJoCo locomotion tasks as one batch, with their observations, rewards and termination rules.

The physics takes nearly all of the time (`simulators.mujoco.batch`, on threads). The rest is a few numpy operations
over all lanes, where Gymnasium needs a few per lane.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Report, Space, Step
from simulators.mujoco.batch import Lanes, Numbers, PhysicsBatch
from simulators.mujoco.options import parse_task_options
from simulators.mujoco.tasks import TASKS, LocomotionTask
from simulators.noise import EpisodeNoise, normal
from simulators.options import closest

PREFIX = "mujoco:"
_LANES_A_THREAD = 4
_MAXIMUM_THREADS = 16


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "MujocoSimulator":
    """Makes `count` lanes of a task.

    Args:
        id: "mujoco:" and a key of `simulators.mujoco.tasks.TASKS`.
        count: Number of lanes.
        options: Fields of the task's class in `simulators.mujoco.options`.
        device: Where observations are returned; the physics is computed on the CPU.

    Raises:
        InvalidArgument: The task or an option is unknown, or a value cannot be used.
        Unimplemented: The installed MuJoCo cannot step batches.
        ModuleNotFoundError: MuJoCo, or Gymnasium, which has the models, is not installed.
    """
    name = id.removeprefix(PREFIX)
    if name not in TASKS:
        hint = closest(name, TASKS)
        raise InvalidArgument(
            f"{PREFIX} has no task {name!r}{hint} (tasks: {', '.join(TASKS)}); "
            "without the prefix, Gymnasium's own environments are stepped one by one"
        )
    task_class = TASKS[name]
    task_options = parse_task_options(options, task_class.options_class)
    threads = task_options.threads or default_threads(count)
    contact_forces = task_class.needs_contact_forces(task_options)
    physics = PhysicsBatch(_assets() / task_class.xml, count, threads, contact_forces=contact_forces)
    return MujocoSimulator(task_class(task_options, physics), physics, device)


def default_threads(count: int) -> int:
    """Returns one thread per core that this process may use, but at most one per 4 lanes, and 16."""
    return max(1, min(len(os.sched_getaffinity(0)), _MAXIMUM_THREADS, count // _LANES_A_THREAD))


def _assets() -> Path:
    """Returns the folder of Gymnasium's models, without importing Gymnasium, which would take a third of a second."""
    found = importlib.util.find_spec("gymnasium")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")
    return Path(found.origin).parent / "envs" / "mujoco" / "assets"


class MujocoSimulator:
    """N lanes of a task behind the Simulator interface.

    An action [N, n] float32 sets the motors. MuJoCo clips it to the bounds of the space; its cost is computed from the
    unclipped action. Computed in float64, returned in float32.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
        physics: The lanes' live states; change them with `set_state`.
    """

    def __init__(self, task: LocomotionTask[Any], physics: PhysicsBatch, device: str = "cpu") -> None:
        """Starts episodes with seed 0; `reset` chooses another seed.

        Args:
            task: Computes observations and rewards.
            physics: The simulations that `task` reads; closed by `close`.
            device: Where observations are returned.
        """
        self.count = physics.count
        self.physics = physics
        size = sum(piece.values.shape[1] for piece in task.pieces)
        self.observation_space = Space("continuous", (size,), torch.float32)
        low, high = physics.model.actuator_ctrlrange.astype(np.float32).T.tolist()
        self.action_space = Space("continuous", (len(low),), torch.float32, tuple(low), tuple(high))
        self._task = task
        self._options = task.options
        self._contact_forces = task.needs_contact_forces(task.options)
        self._device = torch.device(device)
        self._allocate()
        self.reset(0)

    def _allocate(self) -> None:
        shape = (self.count, *self.observation_space.shape)
        self._live = Step(
            observation=torch.zeros(shape),
            reward=torch.zeros(self.count),
            terminated=torch.zeros(self.count, dtype=torch.bool),
            truncated=torch.zeros(self.count, dtype=torch.bool),
            final_observation=torch.zeros(shape),
        )
        self._observation: NDArray[np.float32] = self._live.observation.numpy()
        self._reward: NDArray[np.float32] = self._live.reward.numpy()
        self._terminated: NDArray[np.bool_] = self._live.terminated.numpy()
        self._truncated: NDArray[np.bool_] = self._live.truncated.numpy()
        self._final_observation: NDArray[np.float32] = self._live.final_observation.numpy()
        self._x_position: Numbers = np.zeros(self.count)
        self._steps = np.zeros(self.count, np.int64)
        self._episode = np.zeros(self.count, np.int64)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed determines the states in which episodes start."""
        self._noise = EpisodeNoise(seed)
        self._episode.fill(0)
        self._begin_episodes(np.arange(self.count))
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        task, options = self._task, self._options
        self.physics.ctrl[:] = action.cpu().numpy()
        self.physics.step(options.frame_skip)
        if self._contact_forces:
            self.physics.compute_contact_forces()
        healthy, x_position = task.healthy(), task.x_position()
        self._reward[:] = task.reward(self._x_position, x_position, healthy)
        self._x_position = x_position
        task.observe(self._observation)
        self._steps += 1
        if healthy is not None and options.terminate_when_unhealthy:
            np.logical_not(healthy, out=self._terminated)
        np.greater(self._steps >= options.max_episode_steps, self._terminated, out=self._truncated)
        ended = np.flatnonzero(self._terminated | self._truncated)
        if len(ended):
            self._final_observation[ended] = self._observation[ended]
            self._episode[ended] += 1
            self._begin_episodes(ended)
        return self._live if self._device.type == "cpu" else self._copy_to_device()

    def _begin_episodes(self, lanes: Lanes) -> None:
        """Starts the episodes numbered by `_episode`, at the model's initial state with noise added."""
        model, scale = self.physics.model, self._options.reset_noise_scale
        is_normal = self._task.normal_velocities
        noise = self._noise.uniform(lanes, self._episode[lanes], model.nq + (2 * model.nv if is_normal else model.nv))
        positions, velocities = noise[:, : model.nq], noise[:, model.nq :]
        qpos = model.qpos0 + scale * (2 * positions - 1)
        self.set_state(lanes, qpos, scale * (normal(velocities) if is_normal else 2 * velocities - 1))

    def set_state(self, lanes: Lanes, qpos: Numbers, qvel: Numbers) -> Tensor:
        """Starts episodes in given states.

        Args:
            lanes: [K], ascending, each at most once.
            qpos: [K, nq] positions, in MuJoCo's order.
            qvel: [K, nv] velocities.

        Returns:
            The observations of all lanes, [N, *shape]; those of other lanes do not change.
        """
        self.physics.reset(lanes)
        self.physics.qpos[lanes], self.physics.qvel[lanes] = qpos, qvel
        self.physics.forward(lanes)
        self._steps[lanes] = 0
        self._x_position[lanes] = self._task.x_position()[lanes]
        self._task.observe(self._observation, lanes)
        return self._live.observation.to(self._device)

    def _copy_to_device(self) -> Step:
        return Step(**{field.name: getattr(self._live, field.name).to(self._device) for field in fields(Step)})

    def report(self) -> Report:
        """Returns an empty report: locomotion tasks have no measure except the return."""
        return Report()

    def close(self) -> None:
        """Frees the simulations and their threads."""
        self.physics.close()
