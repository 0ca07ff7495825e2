"""Steps any Gymnasium environment as a batch: N single environments stepped in one loop, or in a few processes.

The cost of a step is N times the environment's own `step`, plus one row copy per lane. Gymnasium's own SyncVectorEnv
also gathers infos and copies observations, which is noticeable for small environments.

A faulty environment ends the step with an error message that names the id, the lane and the step of its episode: if it
raises (Internal), if an observation does not have the shape of the space (InvalidArgument), or if an observation or a
reward is not finite (DataLoss), which would otherwise be noticed only in the weights of a network.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray
from torch import Tensor

from podrace.errors import DataLoss, InvalidArgument, Unimplemented
from podrace.limits.config import EVERYTHING, Allowed
from podrace.plugins.loader import import_user_module
from podrace.spaces.entries import row_type, width
from podrace.spaces.gymnasium_spaces import COMPOSITE, UnsupportedSpaceError, entries_of
from simulators.base import Report, Space, Step, all_finite
from simulators.gym.lanes import INFO_MASK, Environment, Lanes, layout_of, make_environments, one_line
from simulators.options import check_names, closest

if TYPE_CHECKING:
    from simulators.gym.processes import ProcessLanes

PREFIX = "gym:"
MOST_LANES = 10_000
"""Most environments of one simulator. Each is an object that takes a millisecond to make, and memory."""
PROCESSES = "processes"
"""The option of this module; all others are the environment's, or those of simulators.gym.lanes."""
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def registered_ids() -> list[str]:
    """Returns every id known to Gymnasium and its installed plugins."""
    return list(gymnasium.registry)


def is_registered(id: str) -> bool:
    """Whether Gymnasium can make `id`; for `module:Name-v0` the module is imported first, and registers its ids.

    Raises:
        Unimplemented: The module of `module:Name-v0` is not installed.
    """
    module, _, name = id.removeprefix(PREFIX).rpartition(":")
    if module:
        try:
            import_user_module(module)
        except InvalidArgument as error:
            raise Unimplemented(f"{id}: {error.message}") from error
    return name in gymnasium.registry


def make(
    id: str, count: int, options: Mapping[str, object], device: str, allowed: Allowed = EVERYTHING
) -> "GymSimulator":
    """Makes `count` environments of a registered id.

    Args:
        id: A registered Gymnasium id, or `module:Name-v0` if a module registers it; may be prefixed by "gym:".
        count: Number of lanes.
        options: Keyword arguments of `gymnasium.make`: `max_episode_steps` and those of the environment's constructor.
            Also `processes`: over how many processes the lanes are divided; 0, the default, steps them in this process.
            And `info_action_mask`: whether `info["action_mask"]` becomes a part of the observation.
        device: Where observations are returned.
        allowed: Which variables of the environment processes get.

    Raises:
        InvalidArgument: The id or an option is unknown, the environment refuses one, or its spaces are not supported.
        Unimplemented: The environment needs a package that is not installed.
    """
    name = id.removeprefix(PREFIX)
    if count > MOST_LANES:
        raise InvalidArgument(f"{id}: {count} environments, each of which is a Python object; at most {MOST_LANES}")
    if not is_registered(id):
        raise InvalidArgument(f"{id}: Gymnasium has no environment {name!r}{closest(name, registered_ids())}")
    own = dict(options)
    processes = own.pop(PROCESSES, 0)
    if type(processes) is not int or processes < 0:
        raise InvalidArgument(f"{id}: option {PROCESSES!r} must be a whole number of at least 0, not {processes!r}")
    if type(own.get(INFO_MASK, False)) is not bool:
        raise InvalidArgument(f"{id}: option {INFO_MASK!r} must be true or false, not {own[INFO_MASK]!r}")
    try:
        accepted = _allowed_options(name.rpartition(":")[2])
    except ImportError as error:
        raise Unimplemented(f"{id}: {one_line(error)}") from error
    if accepted is not None:
        check_names(id, own, accepted | {PROCESSES, INFO_MASK})
    if not processes:
        return GymSimulator(id, make_environments(id, name, own, count), device)
    from simulators.gym.processes import ProcessLanes  # imported only where it is needed

    return GymSimulator(id, ProcessLanes(id, name, own, count, processes, allowed), device)


def _allowed_options(id: str) -> set[str] | None:
    """Returns the names that `gymnasium.make` accepts for an id, or None if its constructor accepts any name."""
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
    """Returns the functions that receive a creator's keywords; each passes those it does not name to the next."""
    if isinstance(creator, type):
        return [vars(ancestor)["__init__"] for ancestor in creator.__mro__ if "__init__" in vars(ancestor)]
    return [creator] if callable(creator) else []


def lane_seeds(seed: int, count: int) -> list[int]:
    """Derives one seed per lane from (seed, lane): lane i has the same seed for every `count`.

    Args:
        seed: At least 0.
        count: Number of lanes.
    """
    return [int(np.random.SeedSequence(seed, spawn_key=(lane,)).generate_state(1)[0]) for lane in range(count)]


class GymSimulator:
    """N Gymnasium environments behind the Simulator interface.

    Box observations keep their shape: uint8 stays uint8, every other dtype becomes float32. Discrete observations
    become one-hot float32. Dict and Tuple observations become one row with the entries of podrace.spaces.entries. Infos
    are dropped, except for the action mask if the option `info_action_mask` is set.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes.
    """

    def __init__(self, id: str, environments: "Sequence[Environment] | ProcessLanes", device: str = "cpu") -> None:
        """Takes ownership of environments with equal spaces.

        Args:
            id: The simulator's id as the user wrote it, for error messages.
            environments: At least one; closed by `close`.
            device: Where observations are returned.

        Raises:
            InvalidArgument: A space is not supported.
        """
        lanes = Lanes(id, environments) if isinstance(environments, Sequence) else environments
        self.count, self._id, self._lanes = lanes.count, id, lanes
        try:
            self.observation_space = observation_space_of(id, lanes.observation_space, lanes.action_space)
            self.action_space = action_space_of(id, lanes.action_space)
        except InvalidArgument:
            lanes.close()
            raise
        self._device = torch.device(device)
        memory = lanes.allocate()
        self._live = Step(**{field.name: torch.from_numpy(getattr(lanes.arrays, field.name)) for field in fields(Step)})
        self._numbers = _numbers(memory, lanes)
        self._steps = 0

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; raises the errors of `step`."""
        return self._reset(seed, single_episodes=False)

    def reset_for_single_episodes(self, seed: int) -> Tensor:
        """See simulators.base.SingleEpisodes; raises the errors of `step`."""
        return self._reset(seed, single_episodes=True)

    def _reset(self, seed: int, *, single_episodes: bool) -> Tensor:
        self._steps = 0
        self._live.final_observation.zero_()
        self._live.reward.zero_()
        self._lanes.reset(lane_seeds(seed, self.count), single_episodes=single_episodes)
        self._check_finite()
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator.

        Raises:
            DataLoss: An environment returned a number that is not finite.
            InvalidArgument: An observation does not match the observation space.
            Internal: An environment raised an exception.
            Unavailable: One of the processes ended.
        """
        self._steps += 1
        self._lanes.step(action.cpu().numpy())
        self._check_finite()
        return self._live if self._device.type == "cpu" else self._copy_to_device()

    def _check_finite(self) -> None:
        """Checks all numbers at once; where no episode ended, the final observation is that of an earlier episode."""
        if not all_finite(self._numbers):
            self._find_what_is_not_finite()

    def _find_what_is_not_finite(self) -> None:
        arrays = self._lanes.arrays
        ended = arrays.terminated | arrays.truncated
        for name in ("reward", "final_observation", "observation"):
            values: NDArray[Any] = getattr(arrays, name).reshape(self.count, -1)
            wrong = ~np.isfinite(values)
            if name == "final_observation":
                wrong &= ended[:, None]
            if not wrong.any():
                continue
            lane, place = np.argwhere(wrong)[0].tolist()
            is_last = ended[lane] and name != "observation"
            step = arrays.length[lane] if is_last else self._steps - arrays.began[lane]
            what = "a reward that" if name == "reward" else f"an observation whose element {place}"
            raise DataLoss(
                f"{self._id}: lane {lane} returned {what} is not finite ({values[lane, place]}) at step {step} of its "
                "episode: the environment must not return such numbers"
            )

    def _copy_to_device(self) -> Step:
        return Step(**{field.name: getattr(self._live, field.name).to(self._device) for field in fields(Step)})

    def first_environment(self) -> Environment:
        """Returns the environment of the first lane.

        Raises:
            Unimplemented: It is in another process (option `processes`).
        """
        if not isinstance(self._lanes, Lanes):
            raise Unimplemented(f"{self._id}: its environments are in other processes; set the option {PROCESSES} to 0")
        return self._lanes.first_environment

    def report(self) -> Report:
        """Returns an empty report: Gymnasium environments have no measure in common except the return."""
        return Report()

    def close(self) -> None:
        """Closes every environment, and ends the processes."""
        self._lanes.close()


def _numbers(memory: NDArray[np.uint8], lanes: "Lanes | ProcessLanes") -> NDArray[np.float32]:
    """Returns all numbers that lanes write as one view; the padding between the arrays is zero."""
    _, layout = layout_of(lanes.count, lanes.observation_space, lanes.action_space)
    is_bytes = lanes.arrays.observation.dtype == np.uint8
    first, end = layout["reward" if is_bytes else "observation"][0], layout["terminated"][0]
    return memory[first:end].view(np.float32)


def observation_space_of(id: str, space: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> Space:
    """Translates an observation space of Gymnasium; a Dict or a Tuple becomes one row of numbers with entries.

    Args:
        id: The simulator's id, for error messages.
        space: The space of observations.
        action: The space of actions, which an action mask must fit; None: there are no entries.

    Raises:
        InvalidArgument: The space is not supported.
    """
    if isinstance(space, spaces.Box):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return Space("continuous", space.shape, dtype, *_bounds(space))
    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        numbered = n if int(space.start) == 0 else 0
        return Space("continuous", (n,), torch.float32, (0.0,) * n, (1.0,) * n, n=numbered)
    if isinstance(space, COMPOSITE) and action is not None:
        try:
            entries = entries_of(space, action)
        except UnsupportedSpaceError as error:
            raise InvalidArgument(f"{id}: observation space {one_line(space)} is not supported: {error}") from error
        dtype = torch.uint8 if row_type(entries) == np.uint8 else torch.float32
        return Space("composite", (width(entries),), dtype, entries=entries)
    raise InvalidArgument(
        f"{id}: observation space {one_line(space)} is not supported: wrap the environment so that it "
        "observes a Box or Discrete, or, in a Gymnasium environment, a Dict or Tuple"
    )


def action_space_of(id: str, space: spaces.Space[Any]) -> Space:
    """Translates an action space of Gymnasium; raises the errors of `observation_space_of`."""
    if isinstance(space, spaces.Box):
        return Space("continuous", space.shape, torch.float32, *_bounds(space))
    if isinstance(space, spaces.Discrete):
        return Space("discrete", (), torch.int64, n=int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return Space("multi_discrete", space.shape, torch.int64, choices=tuple(space.nvec.ravel().tolist()))
    if isinstance(space, spaces.MultiBinary):
        return Space("multi_binary", space.shape, torch.int64)
    raise InvalidArgument(
        f"{id}: action space {one_line(space)} is not supported: wrap the environment so that it takes a Box, "
        "Discrete, MultiDiscrete or MultiBinary action"
    )


def _bounds(space: spaces.Box) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    def flat(bound: NDArray[Any]) -> tuple[float, ...] | None:
        return None if np.isinf(bound).all() else tuple(bound.astype(np.float64).ravel().tolist())

    return flat(space.low), flat(space.high)
