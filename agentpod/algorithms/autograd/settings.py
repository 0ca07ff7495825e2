"""Defines the hyperparameters that a user-defined algorithm inherits; its own settings are a subclass."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agentpod.algorithms.base import Settings
from agentpod.algorithms.off_policy import OffPolicySettings
from agentpod.models.policy import NetworkSpec
from podrace.specification import catalog
from podrace.specification.declaration import declared_by, hyperparameter

_INHERITED: Mapping[str, catalog.Hyperparameter] = {
    **catalog.TD3.hyperparameters,
    **catalog.SAC.hyperparameters,
    **catalog.DQN.hyperparameters,
}


@dataclass(frozen=True)
class RolloutSettings(Settings):
    """Hyperparameters of an algorithm that learns from each rollout once. A subclass adds fields.

    Attributes:
        head: Key of agentpod.models.action_heads.HEADS: how the actor's outputs become actions.
        network_options: Names of the hyperparameters that `network_class` gets as arguments, besides those that every
            such class gets; whole numbers arrive as int.
    """

    head: ClassVar[str] = "stochastic"
    recurrent_size: ClassVar[int] = 0
    network_options: ClassVar[tuple[str, ...]] = ()

    discount: float = 0.99
    """Gamma: discount per step."""
    maximum_gradient_norm: float = 0.5
    """Gradients with a larger norm are scaled down to it; 0 = no clipping."""
    normalize_rewards: bool = True
    """Whether rewards are divided by the running standard deviation of the discounted return, and clipped to [-10,
    10]."""
    adam_epsilon: float = 1e-5
    """Added to the denominator of Adam."""
    initial_log_std: float = 0.0
    """Initial log standard deviation of continuous actions, in units of half the action range."""
    epochs: int = hyperparameter(1, "passes over each rollout", low=1, high=100)
    """Passes over each rollout."""
    minibatch_size: int = hyperparameter(
        0, "transitions in each gradient step; 0: the whole rollout", low=0, high=10_000_000
    )
    """Steps per gradient step; 0 = all of a rollout."""

    @classmethod
    def declared(cls) -> Mapping[str, catalog.Hyperparameter]:
        """Returns the declaration of every field."""
        return declared_by(cls, catalog.PPO.hyperparameters)

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return _own_network(self, super().network)


@dataclass(frozen=True)
class ReplaySettings(OffPolicySettings):
    """Hyperparameters of an algorithm that learns from a replay memory. A subclass adds fields.

    Attributes:
        head: Key of agentpod.models.action_heads.HEADS: how the actor's outputs become actions.
        network_options: Names of the hyperparameters that `network_class` gets as arguments, besides those that every
            such class gets; whole numbers arrive as int.
    """

    head: ClassVar[str] = "values"
    network_options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def declared(cls) -> Mapping[str, catalog.Hyperparameter]:
        """Returns the declaration of every field."""
        return declared_by(cls, _INHERITED)

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return _own_network(self, super().network)


def _own_network(settings: Any, network: NetworkSpec) -> NetworkSpec:
    """Adds what user-defined settings declare to the structure of a policy."""
    names = sorted(settings.network_options) if network.network_class else []
    options = tuple((name, float(getattr(settings, name))) for name in names)
    return replace(network, head=settings.head, network_options=options)
