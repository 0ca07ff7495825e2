"""Makes batched environments by id: decides which module an id names, and imports that module only when it is needed.

| id | simulator |
|---|---|
| `cartpole`, `pendulum`, `acrobot`, `mountaincar` | Gymnasium's equations over all lanes, on a GPU too |
| `stocks` | stock trading, written as a tensor program |
| `spread`, `tag`, `matrix:<game>` | environments of several agents (see `simulators.teams`) |
| `game:<name>` | games of two players (see `simulators.games`) |
| `pettingzoo:<module>` | parallel environments of PettingZoo |
| `mujoco:<task>` (`mujoco:Ant-v5`) | Gymnasium's task of that name, all lanes stepped by one call of MuJoCo |
| `warp:ant`, `warp:humanoid` | Ant and Humanoid on MuJoCo Warp, for thousands of lanes on a GPU |
| `envpool:<task>` (`envpool:Ant-v5`) | EnvPool's C++ environments on a thread pool |
| `atari:<game>` (`atari:Breakout`) | the Arcade Learning Environment with the usual preprocessing |
| `isaacgym:<task>`, `isaaclab:<id>` | NVIDIA's simulators, in a separate process with its own Python interpreter |
| `grpc://host:port` | a SimulatorService, in any language |
| `python:module:factory` | a user's simulator (see `simulators.user_simulator`) |
| `gym:<id>`, or only the id (`CartPole-v1`) | a Gymnasium id |

Every simulator can be surrounded by the wrappers listed in its option `wrappers` (see `simulators.wrappers`).
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from podrace.errors import BAD_SPEC, InvalidArgument, PodraceError, Unimplemented
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.file_options import with_paths
from podrace.limits.names import environment_problem
from simulators import wrappers
from simulators.base import Report, Simulator, Space, Step
from simulators.options import closest

__all__ = ["FAMILIES", "SIMULATORS", "Report", "Simulator", "Space", "Step", "make"]

Options = Mapping[str, object]


@dataclass(frozen=True)
class Family:
    """Simulators made by one module, which is imported when the first of them is made."""

    module: str
    """Module with a function `make(id, count, options, device)`, which receives the whole id."""
    packages: str = ""
    """Command that installs the packages the module imports; shown when one of them is missing."""
    limited: bool = False
    """Whether `make` receives what is allowed as fifth argument, because it imports modules or opens files."""

    def make(self, id: str, count: int, options: Options, device: str, allowed: Allowed) -> Simulator:
        """Makes a simulator; arguments and errors are those of `simulators.make`."""
        try:
            module = importlib.import_module(self.module)
            more = (allowed,) if self.limited else ()
            simulator: Simulator = module.make(id, count, options, device, *more)
        except ModuleNotFoundError as error:
            raise Unimplemented(f"{id}: package {error.name!r} is not installed: {self.packages}") from error
        return simulator


_CLASSIC = Family("simulators.classic")
_PARTICLES = Family("simulators.teams.particle_tasks")
_MATRIX = Family("simulators.teams.matrix")
_GAMES = Family("simulators.games")
_MUJOCO = Family("simulators.mujoco.simulator", "pip install 'mujoco>=4.0' gymnasium")
_WARP = Family("simulators.warp.simulator", "pip install mujoco-warp gymnasium")
_GYM = Family("simulators.gym.simulator", "pip install gymnasium", limited=True)

SIMULATORS: dict[str, Family] = {
    **dict.fromkeys(("cartpole", "pendulum", "acrobot", "mountaincar"), _CLASSIC),
    **dict.fromkeys(("spread", "tag"), _PARTICLES),
    **dict.fromkeys(("matrix:two-step", "matrix:nonmonotonic", "matrix:climbing"), _MATRIX),
    **dict.fromkeys(("game:tic-tac-toe", "game:connect-four", "game:rock-paper-scissors"), _GAMES),
    "stocks": Family("simulators.stocks", "pip install pandas stockstats bokeh_sampledata", limited=True),
    **{f"mujoco:{task}-v5": _MUJOCO for task in ("Ant", "Humanoid", "HalfCheetah", "Hopper", "Walker2d")},
    "warp:ant": _WARP,
    "warp:humanoid": _WARP,
}
"""Families of the ids that can be listed, by id."""

FAMILIES: dict[str, Family] = {
    "mujoco:": _MUJOCO,
    "warp:": _WARP,
    "envpool:": Family("simulators.envpool", "pip install 'envpool<1.2.6'"),
    "atari:": Family("simulators.atari", "pip install ale-py opencv-python-headless"),
    "isaacgym:": Family("simulators.isaac.client", "pip install numpy", limited=True),
    "isaaclab:": Family("simulators.isaac.client", "pip install numpy", limited=True),
    "grpc://": Family("simulators.remote", "pip install grpcio", limited=True),
    "pettingzoo:": Family("simulators.teams.pettingzoo", "pip install 'podrace[pettingzoo]'", limited=True),
    "python:": Family("simulators.user_simulator", limited=True),
    "gym:": _GYM,
}
"""Families by the prefix of the id."""


def make(
    id: str,
    num_environments: int,
    options: Options | None = None,
    device: str = "cpu",
    seed: int | None = None,
    allowed: Allowed = EVERYTHING,
) -> Simulator:
    """Makes a simulator.

    Args:
        id: A key of `SIMULATORS`, an id that begins with a key of `FAMILIES`, or a Gymnasium id.
        num_environments: Number of lanes, at least 1.
        options: The simulator's own options; for a Gymnasium id the keyword arguments of `gymnasium.make`. Every
            simulator also takes `wrappers` (see `simulators.wrappers`).
        device: Where observations are returned and actions expected, as a torch device string ("cpu", "cuda:0").
        seed: If given, starts an episode in every lane, as `reset(seed)` does. A caller that needs the first
            observations calls `reset` itself.
        allowed: What the id and the options may name. Without it, whatever the caller could use itself; a process that
            makes what others name has to pass what its operator allows.

    Raises:
        InvalidArgument: The id or an option is unknown or not allowed, or a value cannot be used; the message says
            which.
        Unimplemented: A package that this simulator needs is not installed (the message says what to install), or the
            device is not available.
    """
    if num_environments < 1:
        raise InvalidArgument(f"{id}: the number of environments must be at least 1, not {num_environments}")
    own = dict(options or {})
    # Before anything is imported or opened.
    if problem := environment_problem(id, own, allowed):
        raise InvalidArgument(problem, reason=BAD_SPEC)
    _check_device(id, device)
    # Wrappers are checked before anything is built.
    parsed = wrappers.parse(id, own.pop(wrappers.OPTION, []), allowed)
    simulator = wrappers.wrap(_make(id, num_environments, own, device, allowed), parsed, device)
    if seed is not None:
        simulator.reset(seed)
    return simulator


def _make(id: str, count: int, options: Options, device: str, allowed: Allowed) -> Simulator:
    located = with_paths(id, options, allowed)
    try:
        return _family(id).make(id, count, located, device, allowed)
    except PodraceError as error:
        if located == options:
            raise
        # Libraries quote the lines of a file that they cannot parse.
        raise type(error)(f"{id}: cannot be made with these options, which name files of a data root") from error


def _family(id: str) -> Family:
    if id in SIMULATORS:
        return SIMULATORS[id]
    for prefix, family in FAMILIES.items():
        if id.startswith(prefix):
            return family
    from simulators.gym import simulator as gym  # importing Gymnasium takes a quarter of a second

    if not gym.is_registered(id):
        hint = closest(id, [*SIMULATORS, *gym.registered_ids()])
        raise InvalidArgument(
            f"there is no simulator {id!r}{hint or ': use a built-in one (' + ', '.join(SIMULATORS) + ')'}, "
            "a Gymnasium id, or python:module:factory"
        )
    return _GYM


def _check_device(id: str, device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Unimplemented(f"{id}: device {device!r} cannot be used on this machine: {reason}") from error
