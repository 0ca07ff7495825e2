"""Lists what a first specification of an environment needs: its target, batch size, packages and options. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from podrace.specification.catalog import SIMULATORS


@dataclass(frozen=True)
class KnownEnvironment:
    """What a first specification of an environment, or of a family of them, has besides the defaults."""

    target_return: float | None = None
    """Mean return at which the environment is commonly considered solved; None: there is no such convention."""
    count: int = 16
    """Environments that each worker steps as one batch."""
    environment_steps: int = 400_000
    """Budget of one agent."""
    needs: str = ""
    """Extra of podrace that it needs; empty: none."""
    images: bool = False
    """Whether observations are images."""
    note: str = ""
    """Comment above its table; empty: none."""
    sections: str = ""
    """Tables that the simulator should have."""


_STOCKS = """
# Agents are scored on days that training never sees.
[evaluation.options]
split = "validation"

# At the end the champion trades these days once. This is the only use of the split backtest.
[reports.backtest]
episodes = 1

[reports.backtest.options]
split = "backtest"
"""
_CARTPOLE = KnownEnvironment(475.0, environment_steps=150_000)
_PENDULUM = KnownEnvironment(-200.0, environment_steps=300_000)
_GRPC = "The service at this address steps the environments; `options.id` names one of its simulators."
_ISAAC = "Runs in a separate Python interpreter; docs/simulators.md describes how to name it."

ENVIRONMENTS: Mapping[str, KnownEnvironment] = {
    "cartpole": _CARTPOLE,
    "CartPole-v1": _CARTPOLE,
    "pendulum": _PENDULUM,
    "Pendulum-v1": _PENDULUM,
    "acrobot": KnownEnvironment(-100.0),
    "Acrobot-v1": KnownEnvironment(-100.0),
    "mountaincar": KnownEnvironment(-110.0),
    "MountainCar-v0": KnownEnvironment(-110.0),
    "LunarLander-v3": KnownEnvironment(200.0, needs="box2d"),
    "stocks": KnownEnvironment(count=128, environment_steps=1_000_000, needs="stocks", sections=_STOCKS),
    "mujoco:": KnownEnvironment(needs="mujoco"),
    "warp:": KnownEnvironment(count=1024, environment_steps=20_000_000, needs="warp"),
    "envpool:": KnownEnvironment(count=64, needs="envpool"),
    "atari:": KnownEnvironment(count=8, environment_steps=5_000_000, needs="atari", images=True),
    "isaacgym:": KnownEnvironment(count=1024, environment_steps=20_000_000, note=_ISAAC),
    "isaaclab:": KnownEnvironment(count=1024, environment_steps=20_000_000, note=_ISAAC),
    "grpc://": KnownEnvironment(note=_GRPC),
}
"""By id, or by the beginning of the ids of a family."""


def known_environment(id: str) -> KnownEnvironment:
    """Returns what is known about an environment; the defaults if nothing is."""
    plain = id.removeprefix("gym:")
    family = next((entry for key, entry in ENVIRONMENTS.items() if key[-1] in ":/" and plain.startswith(key)), None)
    return ENVIRONMENTS.get(plain, family or KnownEnvironment())


def action_kind(id: str) -> str:
    """Returns `continuous` or `discrete`; empty if it is not known before the environment is made."""
    plain = id.removeprefix("gym:")
    same = {
        "CartPole-v1": "cartpole",
        "Pendulum-v1": "pendulum",
        "Acrobot-v1": "acrobot",
        "MountainCar-v0": "mountaincar",
    }
    families = {key.partition("<")[0]: entry for key, entry in SIMULATORS.items() if not key.startswith("<")}
    exact = families.get(same.get(plain, plain))
    if exact:
        return exact.action_kind
    return next((entry.action_kind for key, entry in families.items() if key[-1] in ":/" and plain.startswith(key)), "")
