"""Any Gymnasium environment as a batch: N single environments stepped in one loop, or in a few processes.

The floor is N times the environment's own `step`; this module adds a row copy a lane. Gymnasium's own SyncVectorEnv
also gathers infos and copies observations, which small environments feel.

An environment that goes wrong ends the step with one line that names the id, the lane and the step of its episode:
one that raises (Internal), that observes another shape than its space (InvalidArgument), or whose observation or
reward is not a finite number (DataLoss), which would otherwise be found in the weights of a network.
"""

import importlib
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
from simulators.base import Report, Space, Step
from simulators.finite import all_finite
from simulators.gym.lanes import Environment, Lanes, layout_of, make_environments, one_line
from simulators.options import check_names, closest

if TYPE_CHECKING:
    from simulators.gym.processes import ProcessLanes

PREFIX = "gym:"
PROCESSES = "processes"
"""The option that is ours and not the environment's."""
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def registered_ids() -> list[str]:
    """Every id known to Gymnasium and its installed plugins."""
    return list(gymnasium.registry)


def is_registered(id: str) -> bool:
    """Whether Gymnasium can make `id`; `module:Name-v0` imports the module first, which registers its own.

    Raises:
        Unimplemented: The module of `module:Name-v0` is not installed.
    """
    module, _, name = id.removeprefix(PREFIX).rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Unimplemented(f"{id}: module {module!r} cannot be imported ({error}): install it") from error
    return name in gymnasium.registry


def make(id: str, count: int, options: Mapping[str, object], device: str) -> "GymSimulator":
    """Makes `count` environments of a registered id.

    Args:
        id: A registered Gymnasium id, `module:Name-v0` where a module registers it; "gym:" may stand before it.
        count: Number of lanes.
        options: Keyword arguments of `gymnasium.make`: `max_episode_steps` and those of the environment's constructor.
            And `processes`: over how many processes the lanes are divided; 0, the default, steps them in this one.
        device: Where observations are returned.

    Raises:
        InvalidArgument: The id or an option is unknown, the environment refuses one, or its spaces are not supported.
        Unimplemented: The environment needs a package that is not installed.
    """
    name = id.removeprefix(PREFIX)
    if not is_registered(id):
        raise InvalidArgument(f"{id}: Gymnasium has no environment {name!r}{closest(name, registered_ids())}")
    own = dict(options)
    processes = own.pop(PROCESSES, 0)
    if type(processes) is not int or processes < 0:
        raise InvalidArgument(f"{id}: option {PROCESSES!r} must be a whole number of at least 0, not {processes!r}")
    try:
        allowed = _allowed_options(name.rpartition(":")[2])
    except ImportError as error:
        raise Unimplemented(f"{id}: {one_line(error)}") from error
    if allowed is not None:
        check_names(id, own, allowed | {PROCESSES})
    if not processes:
        return GymSimulator(id, make_environments(id, name, own, count), device)
    from simulators.gym.processes import ProcessLanes  # for the few who ask for them

    return GymSimulator(id, ProcessLanes(id, name, own, count, processes), device)


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

    def __init__(self, id: str, environments: "Sequence[Environment] | ProcessLanes", device: str = "cpu") -> None:
        """Takes over environments that are all alike.

        Args:
            id: What the user calls them, for error lines.
            environments: At least one; closed by `close`.
            device: Where observations are returned.

        Raises:
            InvalidArgument: A space is neither Box nor Discrete.
        """
        lanes = Lanes(id, environments) if isinstance(environments, Sequence) else environments
        self.count, self._id, self._lanes = lanes.count, id, lanes
        try:
            self.observation_space = observation_space_of(id, lanes.observation_space)
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
        """See simulators.base.Simulator; raises as `step`."""
        self._steps = 0
        self._live.final_observation.zero_()
        self._live.reward.zero_()
        self._lanes.reset(lane_seeds(seed, self.count))
        self._check_finite()
        return self._live.observation.to(self._device)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator.

        Raises:
            DataLoss: An environment returned a number that is not finite.
            InvalidArgument: An environment observed something else than its space says.
            Internal: An environment raised an exception.
            Unavailable: One of the processes ended.
        """
        self._steps += 1
        self._lanes.step(action.cpu().numpy())
        self._check_finite()
        return self._live if self._device.type == "cpu" else self._copy_to_device()

    def _check_finite(self) -> None:
        """Looks at all numbers at once; where an episode did not end, the final observation is an earlier one."""
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

    def report(self) -> Report:
        """Empty: Gymnasium environments have returns and nothing else in common."""
        return Report()

    def close(self) -> None:
        """Closes every environment, and ends their processes."""
        self._lanes.close()


def _numbers(memory: NDArray[np.uint8], lanes: "Lanes | ProcessLanes") -> NDArray[np.float32]:
    """All numbers that lanes write, in one view; nothing but zeros lies between them."""
    _, layout = layout_of(lanes.count, lanes.observation_space, lanes.action_space)
    is_bytes = lanes.arrays.observation.dtype == np.uint8
    first, end = layout["reward" if is_bytes else "observation"][0], layout["terminated"][0]
    return memory[first:end].view(np.float32)


def observation_space_of(id: str, space: spaces.Space[Any]) -> Space:
    """One of Gymnasium's spaces, as it is observed here.

    Raises:
        InvalidArgument: It is neither Box nor Discrete.
    """
    if isinstance(space, spaces.Box):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return Space("continuous", space.shape, dtype, *_bounds(space))
    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        return Space("continuous", (n,), torch.float32, (0.0,) * n, (1.0,) * n)
    raise InvalidArgument(
        f"{id}: observation space {one_line(space)} is not supported: wrap the environment so that it "
        "observes a Box or Discrete (gymnasium.wrappers.FlattenObservation turns Dict and Tuple into a Box)"
    )


def action_space_of(id: str, space: spaces.Space[Any]) -> Space:
    """One of Gymnasium's spaces, as actions are chosen from it here; raises as `observation_space_of`."""
    if isinstance(space, spaces.Box):
        return Space("continuous", space.shape, torch.float32, *_bounds(space))
    if isinstance(space, spaces.Discrete):
        return Space("discrete", (), torch.int64, n=int(space.n))
    raise InvalidArgument(
        f"{id}: action space {one_line(space)} is not supported: wrap the environment so that it takes a Box "
        "or Discrete action"
    )


def _bounds(space: spaces.Box) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    def flat(bound: NDArray[Any]) -> tuple[float, ...] | None:
        return None if np.isinf(bound).all() else tuple(bound.astype(np.float64).ravel().tolist())

    return flat(space.low), flat(space.high)
