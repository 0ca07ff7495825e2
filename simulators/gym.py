"""Any Gymnasium environment as a batch: N single environments stepped in one process, in one loop.

The floor is N times the environment's own `step`; this module adds a row copy a lane. Gymnasium's own SyncVectorEnv
also gathers infos and copies observations, which small environments feel.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import InvalidArgument, Unimplemented
from simulators.base import Report, Space, Step
from simulators.options import check_names

Environment = gymnasium.Env[Any, Any]
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def registered_ids() -> list[str]:
    """Every id known to Gymnasium and its installed plugins."""
    return list(gymnasium.registry)


def is_registered(id: str) -> bool:
    """Whether Gymnasium can make `id`; `module:Name-v0` imports the module first, which registers its own.

    Raises:
        Unimplemented: The module of `module:Name-v0` is not installed.
    """
    module, _, name = id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Unimplemented(f"{id}: module {module!r} cannot be imported ({error}): install it") from error
    return name in gymnasium.registry


def make_gym(id: str, count: int, options: Mapping[str, object], device: str) -> "GymSimulator":
    """Makes `count` environments of a registered id.

    Args:
        id: A registered Gymnasium id.
        count: Number of lanes.
        options: Keyword arguments of `gymnasium.make`: `max_episode_steps` and those of the environment's constructor.
        device: Where observations are returned.

    Raises:
        InvalidArgument: An option is unknown or refused by the environment, or its spaces are not supported.
        Unimplemented: The environment needs a package that is not installed.
    """
    try:
        allowed = _allowed_options(id.rpartition(":")[2])
        if allowed is not None:
            check_names(id, options, allowed)
        environments = [_make_one(id, options) for _ in range(count)]
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise Unimplemented(f"{id}: {_one_line(error)}") from error
    except (gymnasium.error.Error, TypeError, ValueError, KeyError, AssertionError, OSError) as error:
        raise InvalidArgument(f"{id} refuses its options {dict(options)}: {_one_line(error)}") from error
    return GymSimulator(id, environments, device)


def _make_one(id: str, options: Mapping[str, Any]) -> Environment:
    # The checker looks at every step of every environment for mistakes of the environment's author.
    return gymnasium.make(id, disable_env_checker=True, **options)


def _allowed_options(id: str) -> set[str] | None:
    """Names `gymnasium.make` takes for an id, or None when its constructor swallows anything."""
    entry_point = gymnasium.registry[id].entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    allowed = {"max_episode_steps"}
    for constructor in _constructors(creator):
        parameters = inspect.signature(constructor).parameters.values()
        allowed |= {parameter.name for parameter in parameters if parameter.kind in _NAMED_KINDS}
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            return allowed - {"self"}
    return None


def _constructors(creator: object) -> list[Callable[..., Any]]:
    """The functions that see a creator's keywords: each hands what it does not name to the next one."""
    if isinstance(creator, type):
        return [vars(ancestor)["__init__"] for ancestor in creator.__mro__ if "__init__" in vars(ancestor)]
    return [creator] if callable(creator) else []


def _one_line(thing: object) -> str:
    return " ".join(str(thing).split())


def lane_seeds(seed: int, count: int) -> list[int]:
    """One seed a lane, derived from (seed, lane): lane i has the same one whatever `count` is.

    Args:
        seed: At least 0.
        count: Number of lanes.
    """
    return [int(np.random.SeedSequence(seed, spawn_key=(lane,)).generate_state(1)[0]) for lane in range(count)]


class GymSimulator:
    """N Gymnasium environments behind the Simulator interface.

    Box observations keep their shape: uint8 stays uint8, every other dtype becomes float32. Discrete observations
    become one-hot float32. Infos are dropped.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes.
    """

    def __init__(self, id: str, environments: Sequence[Environment], device: str = "cpu") -> None:
        """Takes over environments that are all alike.

        Args:
            id: What the user calls them, for error lines.
            environments: At least one; closed by `close`.
            device: Where observations are returned.

        Raises:
            InvalidArgument: A space is neither Box nor Discrete.
        """
        self.count = len(environments)
        self.observation_space = _observation_space(id, environments[0].observation_space)
        self.action_space = _action_space(id, environments[0].action_space)
        self._environments = list(environments)
        self._step_of_lane = [environment.step for environment in environments]
        self._encode = _observation_encoder(environments[0].observation_space)
        self._decode = _action_decoder(environments[0].action_space)
        self._device = torch.device(device)
        self._allocate()

    def _allocate(self) -> None:
        shape, dtype = (self.count, *self.observation_space.shape), self.observation_space.dtype
        self._live = Step(
            observation=torch.zeros(shape, dtype=dtype),
            reward=torch.zeros(self.count),
            terminated=torch.zeros(self.count, dtype=torch.bool),
            truncated=torch.zeros(self.count, dtype=torch.bool),
            final_observation=torch.zeros(shape, dtype=dtype),
        )
        # The loop writes through numpy views: assigning one row to a tensor costs ten times as much.
        self._observation: NDArray[Any] = self._live.observation.numpy()
        self._reward: NDArray[Any] = self._live.reward.numpy()
        self._terminated: NDArray[Any] = self._live.terminated.numpy()
        self._truncated: NDArray[Any] = self._live.truncated.numpy()
        self._final_observation: NDArray[Any] = self._live.final_observation.numpy()

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        for lane, lane_seed in enumerate(lane_seeds(seed, self.count)):
            observation, _ = self._environments[lane].reset(seed=lane_seed)
            self._observation[lane] = self._encode(observation) if self._encode else observation
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        observations, rewards, encode = self._observation, self._reward, self._encode
        self._terminated.fill(False)
        self._truncated.fill(False)
        native_actions = self._decode(action)
        for lane, step in enumerate(self._step_of_lane):
            observation, rewards[lane], terminated, truncated, _ = step(native_actions[lane])
            if terminated or truncated:
                observation = self._end_episode(lane, observation, bool(terminated))
            observations[lane] = encode(observation) if encode else observation
        return self._live if self._device.type == "cpu" else self._copy_to_device()

    def _end_episode(self, lane: int, observation: Any, terminated: bool) -> Any:
        """Keeps the final observation of a lane and returns the first one of its next episode."""
        self._final_observation[lane] = self._encode(observation) if self._encode else observation
        self._terminated[lane] = terminated
        self._truncated[lane] = not terminated
        observation, _ = self._environments[lane].reset()
        return observation

    def _copy_to_device(self) -> Step:
        return Step(**{field.name: getattr(self._live, field.name).to(self._device) for field in fields(Step)})

    def report(self) -> Report:
        """Empty: Gymnasium environments have returns and nothing else in common."""
        return Report()

    def close(self) -> None:
        """Closes every environment."""
        for environment in self._environments:
            environment.close()


def _observation_space(id: str, space: spaces.Space[Any]) -> Space:
    if isinstance(space, spaces.Box):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return Space("continuous", space.shape, dtype, *_bounds(space))
    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        return Space("continuous", (n,), torch.float32, (0.0,) * n, (1.0,) * n)
    raise InvalidArgument(
        f"{id}: observation space {_one_line(space)} is not supported: wrap the environment so that it "
        "observes a Box or Discrete (gymnasium.wrappers.FlattenObservation turns Dict and Tuple into a Box)"
    )


def _action_space(id: str, space: spaces.Space[Any]) -> Space:
    if isinstance(space, spaces.Box):
        return Space("continuous", space.shape, torch.float32, *_bounds(space))
    if isinstance(space, spaces.Discrete):
        return Space("discrete", (), torch.int64, n=int(space.n))
    raise InvalidArgument(
        f"{id}: action space {_one_line(space)} is not supported: wrap the environment so that it takes a Box "
        "or Discrete action"
    )


def _bounds(space: spaces.Box) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    def flat(bound: NDArray[Any]) -> tuple[float, ...] | None:
        return None if np.isinf(bound).all() else tuple(bound.astype(np.float64).ravel().tolist())

    return flat(space.low), flat(space.high)


def _observation_encoder(space: spaces.Space[Any]) -> Callable[[Any], NDArray[Any]] | None:
    """How a lane's observation becomes a row of the buffer; None when plain assignment does it."""
    if not isinstance(space, spaces.Discrete):
        return None
    one_hot, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
    return lambda observation: one_hot[int(observation) - start]


def _action_decoder(space: spaces.Space[Any]) -> Callable[[Tensor], Any]:
    """How a batch of actions becomes one action a lane, in the environment's own type."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: (action + start).tolist() if start else action.tolist()
    dtype = space.dtype
    return lambda action: action.cpu().numpy().astype(dtype, copy=False)
