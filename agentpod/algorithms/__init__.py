"""Registers the algorithms under the names that a specification uses, and finds those of users."""

import contextlib
from collections.abc import Iterator, Mapping

import torch

from agentpod.algorithms.a2c import A2C
from agentpod.algorithms.base import Algorithm
from agentpod.algorithms.d3qn import D3QN
from agentpod.algorithms.ddpg import DDPG
from agentpod.algorithms.double_dqn import DoubleDQN
from agentpod.algorithms.dqn import DQN
from agentpod.algorithms.dueling_dqn import DuelingDQN
from agentpod.algorithms.ppo import PPO
from agentpod.algorithms.sac import SAC
from agentpod.algorithms.sac_discrete import SACDiscrete
from agentpod.algorithms.td3 import TD3
from agentpod.algorithms.teams.ippo import IPPO
from agentpod.algorithms.teams.maddpg import MADDPG
from agentpod.algorithms.teams.mappo import MAPPO
from agentpod.algorithms.teams.matd3 import MATD3
from agentpod.algorithms.teams.qmix import QMIX
from agentpod.algorithms.teams.vdn import VDN
from agentpod.algorithms.user_class import load_class
from agentpod.models import user_network
from podrace.config import unknown
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.plugins.entry_points import class_of
from podrace.plugins.user_calls import calls_user_code
from simulators.base import Space

__all__ = ["ALGORITHMS", "Algorithm", "algorithm_class", "make", "reports_user_code"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
    "double-dqn": DoubleDQN,
    "dueling-dqn": DuelingDQN,
    "d3qn": D3QN,
    "ddpg": DDPG,
    "td3": TD3,
    "sac": SAC,
    "sac-discrete": SACDiscrete,
    "ippo": IPPO,
    "mappo": MAPPO,
    "vdn": VDN,
    "qmix": QMIX,
    "maddpg": MADDPG,
    "matd3": MATD3,
}


def algorithm_class(name: str) -> type[Algorithm]:
    """Returns the class of an algorithm; imports it if it is user-defined.

    Args:
        name: Key of ALGORITHMS, `python:module:Class`, or the name of an installed entry point.

    Raises:
        InvalidArgument: There is no such algorithm, or the class is unusable.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    address = class_of(name)
    if address is None:
        raise InvalidArgument(unknown("agent", "algorithm", name, ALGORITHMS))
    return load_class(address)


@contextlib.contextmanager
def reports_user_code(algorithm: Algorithm | str, method: str) -> Iterator[None]:
    """Turns an exception of a method of an algorithm into one line if the algorithm or its network is user code.

    Exceptions of podrace pass, among them a lost learner and exhausted memory. So do all exceptions of built-in
    algorithms and networks, which are bugs.

        with reports_user_code(algorithm, "update"):
            await compute.run(algorithm.update, experience)

    Args:
        algorithm: The algorithm, or its name, as for `algorithm_class`.
        method: The method that the block calls.

    Raises:
        InvalidArgument: The block raised in user code (UNUSABLE_ALGORITHM).
    """
    cls = algorithm_class(algorithm) if isinstance(algorithm, str) else type(algorithm)
    network = getattr(getattr(algorithm, "network", None), "network_class", "")
    reporting: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if cls not in ALGORITHMS.values():
        reporting = calls_user_code(cls, method)
    elif network:
        reporting = calls_user_code(user_network.network_class(network), "forward", user_network.KEY)
    with reporting:
        yield


def make(
    name: str,
    observation_space: Space,
    action_space: Space,
    hyperparameters: Mapping[str, object],
    seed: int,
    device: torch.device | str = "cpu",
) -> Algorithm:
    """Creates the algorithm of a new agent, with networks drawn from the seed and without experience.

    Args:
        name: As for `algorithm_class`.
        observation_space: Of the simulator.
        action_space: Of the simulator.
        hyperparameters: By name; missing ones take their defaults.
        seed: Of the agent.
        device: Where it trains.

    Raises:
        InvalidArgument: The algorithm or a hyperparameter is unknown, a value has the wrong type or is out of range, or
            the algorithm does not support the action space.
    """
    algorithm = algorithm_class(name)
    if action_space.kind not in algorithm.action_kinds:
        raise InvalidArgument(
            f"algorithm {name!r} needs {' or '.join(sorted(algorithm.action_kinds))} actions, but the simulator's are "
            f"{action_space.kind}: choose another algorithm or another simulator",
            reason=UNSUITABLE_SPACE,
        )
    _check_agents(name, algorithm, observation_space)
    return algorithm(observation_space, action_space, hyperparameters, seed, device)


def _check_agents(name: str, algorithm: type[Algorithm], observation_space: Space) -> None:
    """Refuses an algorithm for one agent where there are several, and the reverse."""
    for_teams = [key for key, known in ALGORITHMS.items() if getattr(known, "trains_teams", False)]
    agents = observation_space.agents
    if bool(agents) == bool(getattr(algorithm, "trains_teams", False)):
        return
    found = f"has the agents {', '.join(agents[:8])}" if agents else "has a single agent"
    wanted = (
        f"choose one of {', '.join(for_teams)}" if agents else "choose an algorithm for one agent, for instance ppo"
    )
    raise InvalidArgument(
        f"algorithm {name!r} trains {'one agent' if agents else 'teams'}, but the environment {found}: {wanted}",
        reason=UNSUITABLE_SPACE,
    )
