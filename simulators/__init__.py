"""Batched environments by id: what an id means is decided here, and each kind is imported only when it is asked for.

| id | simulator |
|---|---|
| `cartpole`, `pendulum`, `acrobot`, `mountaincar` | Gymnasium's equations over all lanes, on a GPU too |
| `stocks` | stock trading, written as a tensor program |
| `mujoco:<task>` (`mujoco:Ant-v5`) | Gymnasium's task of that name, all lanes stepped by one call of MuJoCo |
| `python:module:factory` | a user's own (see `simulators.imported`) |
| anything else (`CartPole-v1`) | a Gymnasium id |
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from podrace.errors import InvalidArgument, Unimplemented
from simulators.base import Report, Simulator, Space, Step
from simulators.options import closest

__all__ = ["SIMULATORS", "Report", "Simulator", "Space", "Step", "make"]

Options = Mapping[str, object]


def _make_stocks(count: int, options: Options, device: str) -> Simulator:
    # pandas and stockstats cost half a second: only whoever trades pays for them.
    try:
        from simulators.stocks import make_stocks

        return make_stocks(count, options, device)
    except ModuleNotFoundError as error:
        packages = "pip install pandas stockstats bokeh_sampledata"
        raise Unimplemented(f"stocks: package {error.name!r} is not installed: {packages}") from error


def _make_mujoco(id: str, count: int, options: Options, device: str) -> Simulator:
    # MuJoCo costs a quarter of a second.
    try:
        from simulators.mujoco_simulator import make_mujoco

        return make_mujoco(id, count, options, device)
    except ModuleNotFoundError as error:
        packages = "pip install 'mujoco>=4.0' gymnasium"
        raise Unimplemented(f"{id}: package {error.name!r} is not installed: {packages}") from error


def _make_classic(id: str, count: int, options: Options, device: str) -> Simulator:
    from simulators.classic import make_classic

    return make_classic(id, count, options, device)


_CLASSIC_TASKS = ("cartpole", "pendulum", "acrobot", "mountaincar")
_MUJOCO_TASKS = ("Ant-v5", "Humanoid-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
SIMULATORS: dict[str, Callable[[int, Options, str], Simulator]] = {
    **{task: partial(_make_classic, task) for task in _CLASSIC_TASKS},
    "stocks": _make_stocks,
    **{f"mujoco:{task}": partial(_make_mujoco, f"mujoco:{task}") for task in _MUJOCO_TASKS},
}


def make(id: str, count: int, options: Options | None = None, device: str = "cpu") -> Simulator:
    """Makes a simulator.

    Args:
        id: A key of `SIMULATORS`, `python:module:factory`, or a Gymnasium id.
        count: Number of lanes, at least 1.
        options: The simulator's own options; for a Gymnasium id the keyword arguments of `gymnasium.make`.
        device: Where observations are returned and actions expected, in torch's words ("cpu", "cuda:0").

    Raises:
        InvalidArgument: The id or an option is unknown, or a value cannot be used; the line says which.
        Unimplemented: A package that this simulator needs is not installed (the line says what to install), or the
            device is not there.
    """
    if count < 1:
        raise InvalidArgument(f"{id}: count must be at least 1, not {count}")
    _check_device(id, device)
    options = options or {}
    if id in SIMULATORS:
        return SIMULATORS[id](count, options, device)
    if id.startswith("python:"):
        from simulators.imported import make_imported

        return make_imported(id, count, options, device)
    if id.startswith("mujoco:"):
        return _make_mujoco(id, count, options, device)
    return _make_gym(id, count, options, device)


def _check_device(id: str, device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Unimplemented(f"{id}: device {device!r} cannot be used on this machine: {reason}") from error


def _make_gym(id: str, count: int, options: Options, device: str) -> Simulator:
    from simulators import gym

    if not gym.is_registered(id):
        hint = closest(id, [*SIMULATORS, *gym.registered_ids()])
        raise InvalidArgument(
            f"there is no simulator {id!r}{hint or ': name one of ours (' + ', '.join(SIMULATORS) + ')'}, "
            "a Gymnasium id, or python:module:factory"
        )
    return gym.make_gym(id, count, options, device)
