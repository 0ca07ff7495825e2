"""What a specification can name, without importing what implements it: algorithms, simulators, strategies.

Torch-free, so that a specification is checked before a pod starts. A house test holds it against the implementations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = float | int | bool | str | tuple[int, ...]
"""A hyperparameter's value."""


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter of an algorithm."""

    default: Value
    """Value without a word in the specification; its type is the type every value must have."""
    help: str
    """One line."""
    low: float | None = None
    """Smallest value that makes sense, inclusive."""
    high: float | None = None
    """Largest value that makes sense, inclusive."""
    choices: tuple[str, ...] = ()
    """The values of a hyperparameter that is a name."""
    scale: str = "linear"
    """How a search moves: `linear` or `log`."""
    search: tuple[float, float] | None = None
    """Range searched when the specification says nothing; None: fixed at the default."""
    structural: bool = False
    """Only new networks take it: a child has its parent's, or the training files it starts from would not fit."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm."""

    help: str
    """One line."""
    action_kinds: tuple[str, ...]
    """Kinds of action space it can handle: `continuous`, `discrete`."""
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)
    """By name."""


@dataclass(frozen=True)
class Simulator:
    """One simulator, or a family of them."""

    help: str
    """One line."""
    action_kind: str = ""
    """Kind of its action space, empty when it depends on the environment."""


PPO = Algorithm(
    help="proximal policy optimization: clipped surrogate, generalized advantages (Schulman et al. 2017)",
    action_kinds=("continuous", "discrete"),
    hyperparameters={
        "learning_rate": Hyperparameter(3e-4, "step size of Adam", 1e-7, 1.0, scale="log", search=(1e-4, 3e-3)),
        "discount": Hyperparameter(0.99, "weight of the next step's return", 0.0, 1.0),
        "gae_lambda": Hyperparameter(0.95, "bias-variance trade of the advantages", 0.0, 1.0, search=(0.9, 0.99)),
        "clip_range": Hyperparameter(0.2, "trust region of the probability ratio", 0.01, 1.0, search=(0.1, 0.3)),
        "value_clip_range": Hyperparameter(0.0, "clip of the value update; 0: none", 0.0, 100.0),
        "entropy_coefficient": Hyperparameter(
            0.001, "weight of the entropy bonus", 0.0, 1.0, scale="log", search=(1e-5, 0.02)
        ),
        "value_coefficient": Hyperparameter(0.5, "weight of the value loss", 0.0, 100.0),
        "maximum_gradient_norm": Hyperparameter(0.5, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
        "epochs": Hyperparameter(4, "passes over each rollout", 1, 100),
        "minibatch_size": Hyperparameter(512, "transitions a gradient step", 1, 1e7),
        "horizon": Hyperparameter(128, "steps of each environment in a rollout", 1, 1e5),
        "hidden_sizes": Hyperparameter((64, 64), "widths of the hidden layers", 1, 1e5, structural=True),
        "activation": Hyperparameter("tanh", "between layers", choices=("tanh", "relu"), structural=True),
        "normalize_observations": Hyperparameter(True, "by running mean and variance", structural=True),
        "normalize_rewards": Hyperparameter(True, "by the running deviation of the discounted return", structural=True),
        "normalize_advantages": Hyperparameter(True, "to mean 0, variance 1 in each minibatch"),
        "target_kl": Hyperparameter(0.0, "stop an update's epochs beyond this divergence; 0: never", 0.0, 10.0),
        "adam_epsilon": Hyperparameter(1e-5, "added to Adam's denominator", 1e-12, 1.0, scale="log"),
        "initial_log_std": Hyperparameter(
            0.0, "logarithm of the first standard deviation of actions", -10.0, 5.0, structural=True
        ),
    },
)

ALGORITHMS: Mapping[str, Algorithm] = {"ppo": PPO}

SIMULATORS: Mapping[str, Simulator] = {
    "stocks": Simulator("stock trading on daily prices (FinRL's MDP), thousands of accounts a tensor", "continuous"),
    "<Gymnasium id>": Simulator("any registered Gymnasium environment, for instance CartPole-v1 or Ant-v5"),
    "python:<module>:<factory>": Simulator("your own: a function that returns a simulator or a Gymnasium environment"),
}

STRATEGIES: Mapping[str, str] = {
    "tournament": "the best of a few candidates drawn at random becomes the parent; its hyperparameters mutate",
    "random-search": "every agent is fresh; the control that evolution must beat",
}
