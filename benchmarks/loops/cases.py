"""Defines the cases of `peers.py`, and the settings that all contenders get.

Settings have podrace's names; each peer's process translates them. Settings that are not named keep the peer's default.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loops.process import Request

SB3, RLLIB = "stable-baselines3", "rllib"
EXAMPLES = Path(__file__).parents[2] / "examples"
OURS = {"CartPole-v1": "cartpole", "Pendulum-v1": "pendulum", "Ant-v5": "mujoco:Ant-v5"}
"""podrace's simulators of the same tasks: tests compare their observations and rewards with Gymnasium's."""
COUNT = 16
SIZES = ((64, 64), (256, 256))

# Nothing is normalized: each library does so at a different place, if at all.
PPO: Mapping[str, Any] = {
    "horizon": 128,
    "epochs": 4,
    "minibatch_size": 512,
    "learning_rate": 3e-4,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "entropy_coefficient": 0.0,
    "value_coefficient": 0.5,
    "maximum_gradient_norm": 0.5,
    "hidden_sizes": (64, 64),
    "activation": "tanh",
    "normalize_observations": False,
    "normalize_rewards": False,
}

SAC: Mapping[str, Any] = {
    "horizon": 1,
    "batch_size": 256,
    "updates_per_step": 1.0,
    "warmup_steps": 1000,
    "replay_capacity": 100_000,
    "target_rate": 0.005,
    "learning_rate": 1e-3,
    "discount": 0.99,
    "hidden_sizes": (256, 256),
    "activation": "relu",
    "normalize_observations": False,
}

# The best hyperparameters of rl-baselines3-zoo (hyperparams/ppo.yml) for SB3's PPO on CartPole-v1: 100,000 steps, over
# which learning rate and clip range fall to 0 (`lin_0.001`, `lin_0.2`); 8 environments.
ZOO_COUNT = 8
ZOO_CARTPOLE: Mapping[str, Any] = {
    **PPO,
    "horizon": 32,
    "epochs": 20,
    "minibatch_size": 256,
    "learning_rate": 1e-3,
    "discount": 0.98,
    "gae_lambda": 0.8,
    "schedule_steps": 100_000,
}

# Its hyperparameters for Ant-v4 (`mujoco-defaults`): SB3's defaults with VecNormalize, one environment.
ZOO_MUJOCO: Mapping[str, Any] = {
    **PPO,
    "horizon": 2048,
    "epochs": 10,
    "minibatch_size": 64,
    "normalize_observations": True,
    "normalize_rewards": True,
}


# Target return, environment steps between evaluations, and steps after which the run stops without success.
CARTPOLE_GOAL: Mapping[str, Any] = {"target_return": 475, "every_steps": 5_000, "limit_steps": 300_000}
PENDULUM_GOAL: Mapping[str, Any] = {"target_return": -200, "every_steps": 1_000, "limit_steps": 30_000}
ANT_GOAL: Mapping[str, Any] = {"target_return": 2000, "every_steps": 100_000, "limit_steps": 5_000_000}


@dataclass(frozen=True)
class Case:
    """A measurement of podrace and of the peers.

    Attributes:
        name: The name that is printed.
        own: Request for podrace.
        peers: Request for each peer; peers without one are skipped.
    """

    name: str
    own: Request
    peers: Mapping[str, Request]


def cases(algorithms: Collection[str], *, long: bool = False) -> list[Case]:
    """Returns all cases of the given algorithms; with `long`, also those that take many minutes."""
    found = [
        *(rate("ppo", environment, sizes, PPO) for environment in ("CartPole-v1", "Ant-v5") for sizes in SIZES),
        *(rate("sac", "Pendulum-v1", sizes, SAC) for sizes in SIZES),
        cartpole_alike(),
        cartpole_at_its_best(),
        pendulum(long=long),
        *([ant(), ant_at_its_best()] if long else []),
    ]
    return [case for case in found if case.own.algorithm in algorithms]


def alike(name: str, request: Request) -> Case:
    """Makes a case with the same request for all contenders, each with its own simulator."""
    return Case(name, by_ours(request), {SB3: request, RLLIB: request})


def by_ours(request: Request) -> Request:
    """Returns the same task, for podrace's simulator."""
    return replace(request, environment=OURS[request.environment])


def rate(algorithm: str, environment: str, hidden_sizes: tuple[int, ...], settings: Mapping[str, Any]) -> Case:
    """Measures steps per second."""
    settings = {**settings, "hidden_sizes": hidden_sizes}
    name = f"{algorithm}/{environment}/{len(hidden_sizes)}x{hidden_sizes[0]}"
    return alike(name, Request("rate", algorithm, environment, COUNT, settings))


def cartpole_alike() -> Case:
    """PPO to a return of 475, at which CartPole-v1 counts as solved."""
    settings = {**PPO, "learning_rate": 1e-3}
    return alike("ppo/CartPole-v1/475/equal", Request("target", "ppo", "CartPole-v1", COUNT, settings, **CARTPOLE_GOAL))


def cartpole_at_its_best() -> Case:
    """The same, with the settings recommended by each library's authors; RLlib's give none."""
    count, settings = example_settings("cartpole")
    own = Request("target", "ppo", "CartPole-v1", count, settings, **{**CARTPOLE_GOAL, "every_steps": 2_000})
    zoo = replace(own, count=ZOO_COUNT, settings=ZOO_CARTPOLE, limit_steps=ZOO_CARTPOLE["schedule_steps"])
    return Case("ppo/CartPole-v1/475/own-best", by_ours(own), {SB3: zoo})


def example_settings(name: str) -> tuple[int, dict[str, Any]]:
    """Returns number of environments and hyperparameters of an example; for a range, the first agent's value."""
    example = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())
    given = example["algorithms"]["ppo"]["hyperparameters"]
    values = {name: value["value"] if isinstance(value, dict) else value for name, value in given.items()}
    return example["environment"]["count"], values


def pendulum(*, long: bool) -> Case:
    """SAC to -200; RLlib makes so few gradient steps per second that its run is long."""
    request = Request("target", "sac", "Pendulum-v1", COUNT, SAC, **PENDULUM_GOAL)
    peers = {SB3: request} | ({RLLIB: request} if long else {})
    return Case("sac/Pendulum-v1/-200/equal", by_ours(request), peers)


def ant() -> Case:
    """PPO to 2,000; SB3 uses its VecNormalize, while RLlib can normalize only observations."""
    settings = {**PPO, "normalize_observations": True, "normalize_rewards": True}
    return alike("ppo/Ant-v5/2000/equal", Request("target", "ppo", "Ant-v5", COUNT, settings, **ANT_GOAL))


def ant_at_its_best() -> Case:
    """The same, with the settings recommended by each library's authors; RLlib's give none."""
    count, settings = example_settings("ant")
    own = Request("target", "ppo", "Ant-v5", count, settings, **ANT_GOAL)
    return Case("ppo/Ant-v5/2000/own-best", by_ours(own), {SB3: replace(own, count=1, settings=ZOO_MUJOCO)})
