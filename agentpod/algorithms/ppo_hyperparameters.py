"""Owns what a specification can set of PPO, and the ranges in which it can train."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class PPOHyperparameters:
    """What a specification can set, with defaults that suit many tasks."""

    learning_rate: float = 3e-4
    """Step size of Adam."""
    discount: float = 0.99
    """Gamma: worth of a reward one step later."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation: 0 trusts the critic alone, 1 the rewards alone."""
    clip_range: float = 0.2
    """Epsilon: how far a probability ratio may move from 1 before its gradient vanishes."""
    value_clip_range: float = 0.0
    """How far a value may move from the one before the update before its gradient vanishes; 0 = off."""
    entropy_coefficient: float = 0.001
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the squared value error."""
    maximum_gradient_norm: float = 0.5
    """Gradients longer than this are scaled down to it; 0 = off."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatch_size: int = 512
    """Steps a gradient is estimated from; the last minibatches are smaller where it does not divide the rollout."""
    horizon: int = 128
    """Steps of each environment in a rollout."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, of the actor and of the critic."""
    activation: str = "tanh"
    """tanh, relu or elu."""
    normalize_observations: bool = True
    """Whether the networks see observations in running standard units."""
    normalize_rewards: bool = True
    """Whether rewards are divided by the running deviation of the discounted return."""
    normalize_advantages: bool = True
    """Whether advantages are standardised within each minibatch."""
    target_kl: float = 0.0
    """Stop the update after an epoch whose mean approximate KL divergence exceeds this; 0 = off."""
    adam_epsilon: float = 1e-5
    """Added to the denominator of Adam."""
    initial_log_std: float = 0.0
    """Logarithm of the first standard deviation of continuous actions, in units of half the action range."""

    def __post_init__(self) -> None:
        """Refuses what cannot train.

        Raises:
            InvalidArgument: A value is out of range.
        """
        for wanted, holds, names in _RANGES:
            for name in names:
                value = getattr(self, name)
                if not holds(value):
                    raise InvalidArgument(f"hyperparameter {name} = {value} must be {wanted}")


_RANGES: tuple[tuple[str, Callable[[float], bool], tuple[str, ...]], ...] = (
    (
        "positive",
        lambda value: 0 < value < math.inf,
        ("learning_rate", "clip_range", "adam_epsilon", "epochs", "minibatch_size", "horizon"),
    ),
    (
        "at least 0",
        lambda value: 0 <= value < math.inf,
        ("value_clip_range", "entropy_coefficient", "value_coefficient", "maximum_gradient_norm", "target_kl"),
    ),
    ("between 0 and 1", lambda value: 0 <= value <= 1, ("discount", "gae_lambda")),
    ("between -10 and 10", lambda value: -10 <= value <= 10, ("initial_log_std",)),
)
