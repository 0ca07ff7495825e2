"""Makes a user's simulator from an import path: `python:module:factory`.

The signature of the factory decides what it makes:

* with a parameter named `count`, it makes the whole batch: `factory(count=N, **options)` returns a Simulator. It also
  receives `device` if it has such a parameter.
* without one, it makes one lane: `factory(**options)` returns a gymnasium.Env, and is called N times.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium

from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from simulators.base import Simulator
from simulators.gym.simulator import GymSimulator
from simulators.options import check_names
from simulators.user_function import find


def make(id: str, count: int, options: Mapping[str, object], device: str, allowed: Allowed = EVERYTHING) -> Simulator:
    """Calls the factory named by an id.

    Args:
        id: `python:module:factory`.
        count: Number of lanes.
        options: Keyword arguments of the factory.
        device: Where observations are returned.
        allowed: Which modules may be used.

    Raises:
        InvalidArgument: The path cannot be imported or is not allowed, an option is unknown, or the factory returned
            something else.
    """
    factory = find(id, allowed, id, f"environment.id = {id!r}")
    parameters = inspect.signature(factory).parameters
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_names(id, options, set(parameters) - {"count", "device"})
    if "count" in parameters:
        placement = {"device": device} if "device" in parameters else {}
        return _checked_simulator(id, factory(count=count, **placement, **options), count)
    return GymSimulator(id, [_checked_environment(id, factory(**options)) for _ in range(count)], device)


def _checked_simulator(id: str, made: object, count: int) -> Simulator:
    if not isinstance(made, Simulator):
        raise InvalidArgument(
            f"{id}: a factory with a parameter 'count' must return a simulators.Simulator, not {type(made).__name__}"
        )
    if made.count != count * made.observation_space.lanes:
        agents = f" of {made.observation_space.lanes} agents" if made.observation_space.agents else ""
        raise InvalidArgument(
            f"{id}: the factory was asked for {count} environments{agents} and made {made.count} lanes"
        )
    return made


def _checked_environment(id: str, made: object) -> gymnasium.Env[Any, Any]:
    if not isinstance(made, gymnasium.Env):
        raise InvalidArgument(
            f"{id}: a factory without a parameter 'count' must return one gymnasium.Env, not {type(made).__name__}"
        )
    return made
