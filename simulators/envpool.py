"""Steps EnvPool's C++ environments behind the Simulator interface: `envpool:Ant-v5`, `envpool:CartPole-v1`.

EnvPool starts the next episode of a lane in the step after the last one of an episode, and ignores that step's action.
The Simulator interface starts it in the same step. So the lanes that ended are reset by a second call, for those lanes
alone, before `step` returns. Each step in which an episode ends takes one more round trip to the pool, and no step of
a lane is lost.

| Option | Default | Meaning |
|---|---|---|
| `threads` | 0 | threads of the pool; 0 = one per core that this process may use, but no more than lanes |
| `max_episode_steps` | EnvPool's | steps after which an episode is truncated |
| any other | EnvPool's | any option that `envpool.make_spec(task)` lists: `frame_skip`, `ctrl_cost_weight`, ... |
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import envpool
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import DataLoss, InvalidArgument
from podrace.spaces.entries import EntryError, flattened
from simulators.base import Report, Step, all_finite
from simulators.gym.simulator import action_space_of, lane_seeds, observation_space_of
from simulators.options import check_names, closest

Array = NDArray[Any]
PREFIX = "envpool:"
THREADS, LIMIT = "threads", "max_episode_steps"
_OURS = {
    "num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path", "seed",
    "env_seed", "gym_reset_return_info", "reward_threshold",
}  # fmt: skip
"""Settings of a pool that the Simulator interface determines, or that have no effect in a simulator."""
_NO_LIMIT = 2**31 - 1


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "EnvPoolSimulator":
    """Makes `count` lanes of one of EnvPool's tasks.

    Args:
        id: "envpool:" and a name of `envpool.list_all_envs()`.
        count: Number of lanes.
        options: See the table above.
        device: Where observations are returned.

    Raises:
        InvalidArgument: The task or an option is unknown, a value is refused, or the spaces are not supported.
        ModuleNotFoundError: EnvPool is not installed.
    """
    task = id.removeprefix(PREFIX)
    tasks = envpool.list_all_envs()
    if task not in tasks:
        hint = closest(task, tasks) or "; envpool.list_all_envs() lists what there is"
        raise InvalidArgument(f"{id}: EnvPool has no task {task!r}{hint}")
    specification = envpool.make_spec(task)
    defaults = dict(zip(specification._config_keys, specification._config_values, strict=True))
    defaults = {name: value for name, value in defaults.items() if name not in _OURS} | {THREADS: 0}
    check_names(id, options, defaults)
    for name, value in options.items():
        _check_value(id, name, value, defaults[name])
    config = {**defaults, **options}
    config["num_threads"] = config.pop(THREADS) or min(len(os.sched_getaffinity(0)), count)
    return EnvPoolSimulator(id, task, count, config, device)


def _check_value(id: str, name: str, value: object, default: object) -> None:
    kind = type(default)
    # For settings of any other type, the pool's own error lists the expected types.
    if kind in (bool, int, float, str) and type(value) is not kind and not (kind is float and type(value) is int):
        raise InvalidArgument(f"{id}: option {name!r} must be {kind.__name__}, not {value!r}")
    minimum = {THREADS: 0, LIMIT: 1}.get(name)
    if minimum is not None and isinstance(value, int) and value < minimum:
        raise InvalidArgument(f"{id}: option {name!r} must be at least {minimum}, not {value!r}")


class EnvPoolSimulator:
    """N lanes of one pool.

    EnvPool takes its seeds when a pool is built, so `reset` builds a new pool; lane i has the same episodes for every
    N. EnvPool reports a termination in the last step of the time limit as a truncation, so the limit is counted here.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
    """

    def __init__(self, id: str, task: str, count: int, config: Mapping[str, Any], device: str = "cpu") -> None:
        """Starts episodes with seed 0; `reset` chooses another seed.

        Args:
            id: The simulator's id as the user wrote it, for error messages.
            task: EnvPool's name of the task.
            count: Number of lanes.
            config: Keyword arguments of `envpool.make_gymnasium`, including `max_episode_steps`.
            device: Where observations are returned.

        Raises:
            InvalidArgument: EnvPool refuses the configuration, or the spaces are not supported.
        """
        self.count, self._id, self._task = count, id, task
        self._config, self._limit = {**config, LIMIT: _NO_LIMIT}, config[LIMIT]
        self._device = torch.device(device)
        try:
            self._pool = self._build(0)
        except (TypeError, ValueError, AssertionError, RuntimeError, OverflowError) as error:
            line = " ".join(str(error).split())
            raise InvalidArgument(f"{id}: EnvPool refuses its options: {line}") from error
        observation_space, action_space = self._pool.observation_space, self._pool.action_space
        self.observation_space = observation_space_of(id, observation_space, action_space)
        self.action_space = action_space_of(id, action_space)
        self._entries = self.observation_space.entries
        self._first_action = int(getattr(action_space, "start", 0))
        self._action_type = action_space.dtype
        self._one_hot: NDArray[np.float32] | None = None
        if isinstance(observation_space, spaces.Discrete):
            self._one_hot = np.eye(int(observation_space.n), dtype=np.float32)
            self._first_observation = int(observation_space.start)
        dtype = self.observation_space.dtype
        self._final_observation = torch.zeros((count, *self.observation_space.shape), dtype=dtype)
        self._steps = np.zeros(count, np.int64)
        self._observed(self._pool.reset()[0])

    def _build(self, seed: int) -> Any:
        seeds = [lane_seed % 2**31 for lane_seed in lane_seeds(seed, self.count)]
        with warnings.catch_warnings():
            # Warnings about bounds of spaces that lose digits in the conversion to float32.
            warnings.simplefilter("ignore")
            pool = envpool.make_gymnasium(self._task, num_envs=self.count, env_seed=seeds, **self._config)
            _ = pool.observation_space, pool.action_space
        return pool

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; builds a new pool, and takes as long."""
        self._pool.close()
        self._pool = self._build(seed)
        self._steps.fill(0)
        self._final_observation.zero_()
        return torch.from_numpy(self._observed(self._pool.reset()[0])).to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator.

        Raises:
            DataLoss: An environment returned a number that is not finite, or an observation outside of its space.
        """
        native = action.cpu().numpy().astype(self._action_type, copy=False)
        received, reward, terminated, truncated, _ = self._pool.step(native + self._first_action)
        self._steps += 1
        observation = self._observed(received, reward)
        truncated |= self._steps >= self._limit
        truncated &= ~terminated
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if len(ended):
            self._final_observation.numpy()[ended] = observation[ended]
            self._steps[ended] = 0
            observation[ended] = self._observed(self._pool.reset(ended)[0], lanes=ended)
        return Step(
            observation=torch.from_numpy(observation).to(self._device),
            reward=torch.from_numpy(reward).to(self._device),
            terminated=torch.from_numpy(terminated).to(self._device),
            truncated=torch.from_numpy(truncated).to(self._device),
            final_observation=self._final_observation.to(self._device),
        )

    def _observed(self, received: Any, reward: Array | None = None, lanes: NDArray[np.int32] | None = None) -> Array:
        """Returns the observations of `lanes` (None: all of them), in the type of the observation space."""
        if self._entries:
            received = self._flattened(received, self.count if lanes is None else len(lanes))
        if self._one_hot is not None:
            rows: Array = self._one_hot[received - self._first_observation]
            return rows
        if received.dtype == np.uint8:
            observation: Array = received
            is_sound = reward is None or all_finite(reward)
        else:
            observation = received.astype(np.float32, copy=False)
            is_sound = all_finite(observation.ravel()) and (reward is None or all_finite(reward))
        if not is_sound:
            columns = [observation.reshape(len(observation), -1), *([] if reward is None else [reward[:, None]])]
            row = int(np.flatnonzero(~np.isfinite(np.concatenate(columns, 1)).all(1))[0])
            lane = row if lanes is None else int(lanes[row])
            raise DataLoss(
                f"{self._id}: lane {lane} returned an observation or a reward that is not finite at step "
                f"{self._steps[lane]} of its episode"
            )
        return observation

    def _flattened(self, received: Any, lanes: int) -> Array:
        try:
            return flattened(self._entries, received, lanes)
        except EntryError as error:
            raise DataLoss(f"{self._id}: EnvPool returned an observation whose {error}") from error

    def report(self) -> Report:
        """Returns an empty report: EnvPool has no measure except the return."""
        return Report()

    def close(self) -> None:
        """Frees the pool and its threads."""
        self._pool.close()
