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
    on_gpu: bool = False
    """Whether it steps on a GPU where there is one, so that its tensors had better stay there."""


_BOTH, _CONTINUOUS, _DISCRETE = ("continuous", "discrete"), ("continuous",), ("discrete",)


def _network(
    hidden_sizes: tuple[int, ...], activation: str, *, normalize_observations: bool
) -> dict[str, Hyperparameter]:
    return {
        "hidden_sizes": Hyperparameter(hidden_sizes, "widths of the hidden layers", 1, 1e5, structural=True),
        "activation": Hyperparameter(activation, "between layers", choices=("tanh", "relu", "elu"), structural=True),
        "normalize_observations": Hyperparameter(
            normalize_observations, "by running mean and variance; bytes are divided by 255 instead", structural=True
        ),
        "torso": Hyperparameter(
            "none", "convolutions that look at pictures first", choices=("none", "nature", "small"), structural=True
        ),
    }


_SCHEDULE = {
    "learning_rate_steps": Hyperparameter(0, "environment steps over which it falls; 0: it stays", 0, 1e12),
    "final_learning_rate": Hyperparameter(0.05, "what it falls to, as a share of learning_rate", 0.0, 1.0),
}

_ON_POLICY = {
    **_network((64, 64), "tanh", normalize_observations=True),
    "learning_rate": Hyperparameter(3e-4, "step size of Adam", 1e-7, 1.0, scale="log", search=(1e-4, 3e-3)),
    **_SCHEDULE,
    "discount": Hyperparameter(0.99, "weight of the next step's return", 0.0, 1.0),
    "gae_lambda": Hyperparameter(0.95, "bias-variance trade of the advantages", 0.0, 1.0, search=(0.9, 0.99)),
    "entropy_coefficient": Hyperparameter(
        0.001, "weight of the entropy bonus", 0.0, 1.0, scale="log", search=(1e-5, 0.02)
    ),
    "value_coefficient": Hyperparameter(0.5, "weight of the value loss", 0.0, 100.0),
    "maximum_gradient_norm": Hyperparameter(0.5, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "recurrent_size": Hyperparameter(
        0, "numbers the networks remember from step to step (GRU); 0: none", 0, 1e5, structural=True
    ),
    "horizon": Hyperparameter(128, "steps of each environment in a rollout", 1, 1e5),
    "normalize_rewards": Hyperparameter(True, "by the running deviation of the discounted return", structural=True),
    "normalize_advantages": Hyperparameter(True, "to mean 0, variance 1 in each minibatch"),
    "adam_epsilon": Hyperparameter(1e-5, "added to Adam's denominator", 1e-12, 1.0, scale="log"),
    "initial_log_std": Hyperparameter(
        0.0, "logarithm of the first standard deviation of actions", -10.0, 5.0, structural=True
    ),
}

PPO = Algorithm(
    help="proximal policy optimization: clipped surrogate, generalized advantages (Schulman et al. 2017)",
    action_kinds=_BOTH,
    hyperparameters={
        **_ON_POLICY,
        "clip_range": Hyperparameter(0.2, "trust region of the probability ratio", 0.01, 1.0, search=(0.1, 0.3)),
        "value_clip_range": Hyperparameter(0.0, "clip of the value update; 0: none", 0.0, 100.0),
        "epochs": Hyperparameter(4, "passes over each rollout", 1, 100),
        "minibatch_size": Hyperparameter(512, "transitions a gradient step", 1, 1e7),
        "target_kl": Hyperparameter(0.0, "stop an update's epochs beyond this divergence; 0: never", 0.0, 10.0),
        "desired_kl": Hyperparameter(0.0, "adapt the learning rate to keep this divergence; 0: fixed", 0.0, 10.0),
    },
)

A2C = Algorithm(
    help="advantage actor-critic: one step of the policy gradient a short rollout (Mnih et al. 2016)",
    action_kinds=_BOTH,
    hyperparameters={
        **_ON_POLICY,
        "learning_rate": Hyperparameter(1e-3, "step size of Adam", 1e-7, 1.0, scale="log", search=(2e-4, 5e-3)),
        "gae_lambda": Hyperparameter(1.0, "bias-variance trade of the advantages", 0.0, 1.0, search=(0.9, 1.0)),
        "horizon": Hyperparameter(8, "steps of each environment in a rollout", 1, 1e5),
        "normalize_advantages": Hyperparameter(False, "to mean 0, variance 1 in each rollout"),
    },
)

_OFF_POLICY = {
    **_network((256, 256), "relu", normalize_observations=False),
    "learning_rate": Hyperparameter(3e-4, "step size of Adam", 1e-7, 1.0, scale="log", search=(1e-4, 3e-3)),
    **_SCHEDULE,
    "discount": Hyperparameter(0.99, "weight of the next step's return", 0.0, 1.0),
    "horizon": Hyperparameter(1, "steps of each environment between two policy versions", 1, 1e5),
    "n_step": Hyperparameter(1, "rewards summed before a value is bootstrapped from", 1, 1000),
    "batch_size": Hyperparameter(256, "replayed steps a gradient is estimated from", 1, 1e6),
    "updates_per_step": Hyperparameter(1.0, "gradient steps an environment step", 1e-4, 1e3, scale="log"),
    "warmup_steps": Hyperparameter(1000, "environment steps before the first update", 0, 1e9),
    "replay_capacity": Hyperparameter(1_000_000, "environment steps the replay memory holds", 1, 1e9, structural=True),
    "prioritized": Hyperparameter(False, "replay by the size of the last error", structural=True),
    "priority_exponent": Hyperparameter(0.6, "0: replay evenly, 1: in proportion to the error", 0.0, 1.0),
    "priority_correction": Hyperparameter(0.4, "first exponent of the importance weights, grows to 1", 0.0, 1.0),
    "priority_annealing_steps": Hyperparameter(100_000, "environment steps after which it is 1", 1, 1e12),
    "target_rate": Hyperparameter(0.005, "share of the way the targets move", 1e-6, 1.0, scale="log"),
    "target_period": Hyperparameter(1, "gradient steps between such moves", 1, 1e6),
    "maximum_gradient_norm": Hyperparameter(0.0, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "adam_epsilon": Hyperparameter(1e-8, "added to Adam's denominator", 1e-12, 1.0, scale="log"),
}

_DQN = {
    **_OFF_POLICY,
    "hidden_sizes": Hyperparameter((128, 128), "widths of the hidden layers", 1, 1e5, structural=True),
    "horizon": Hyperparameter(8, "steps of each environment between two policy versions", 1, 1e5),
    "learning_rate": Hyperparameter(5e-4, "step size of Adam", 1e-7, 1.0, scale="log", search=(1e-4, 2e-3)),
    "n_step": Hyperparameter(5, "rewards summed before a value is bootstrapped from", 1, 1000),
    "batch_size": Hyperparameter(128, "replayed steps a gradient is estimated from", 1, 1e6),
    "replay_capacity": Hyperparameter(100_000, "environment steps the replay memory holds", 1, 1e9, structural=True),
    "updates_per_step": Hyperparameter(0.25, "gradient steps an environment step", 1e-4, 1e3, scale="log"),
    "target_rate": Hyperparameter(0.01, "share of the way the targets move", 1e-6, 1.0, scale="log"),
    "maximum_gradient_norm": Hyperparameter(10.0, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "initial_exploration": Hyperparameter(1.0, "first share of steps that take any choice", 0.0, 1.0),
    "final_exploration": Hyperparameter(0.05, "share it falls to", 0.0, 1.0),
    "exploration_steps": Hyperparameter(20_000, "environment steps after which it has fallen", 1, 1e12),
    "huber_delta": Hyperparameter(1.0, "errors beyond this count linearly; 0: none do", 0.0, 1e6),
}

DQN = Algorithm("deep Q-learning (Mnih et al. 2015)", _DISCRETE, _DQN)
DOUBLE_DQN = Algorithm("DQN with doubled targets (van Hasselt et al. 2016)", _DISCRETE, _DQN)
DUELING_DQN = Algorithm("DQN with a dueling network (Wang et al. 2016)", _DISCRETE, _DQN)
D3QN = Algorithm("dueling double DQN, with n-step targets and priorities as settings", _DISCRETE, _DQN)

_DDPG = {
    **_OFF_POLICY,
    "learning_rate": Hyperparameter(1e-3, "step size of Adam", 1e-7, 1.0, scale="log", search=(1e-4, 3e-3)),
    "critics": Hyperparameter(1, "critics in the ensemble; their least value is the target", 1, 100, structural=True),
    "initial_exploration": Hyperparameter(1.0, "noise on actions during the warm-up, in half ranges", 0.0, 10.0),
    "exploration": Hyperparameter(0.1, "noise on actions afterwards, in half ranges", 0.0, 10.0, search=(0.03, 0.3)),
}

DDPG = Algorithm("deep deterministic policy gradients (Lillicrap et al. 2016)", _CONTINUOUS, _DDPG)
TD3 = Algorithm(
    "twin delayed DDPG (Fujimoto et al. 2018)",
    _CONTINUOUS,
    {
        **_DDPG,
        "critics": Hyperparameter(
            2, "critics in the ensemble; their least value is the target", 1, 100, structural=True
        ),
        "target_period": Hyperparameter(2, "gradient steps between such moves", 1, 1e6),
        "target_noise": Hyperparameter(0.2, "noise on the target policy's actions, in half ranges", 0.0, 10.0),
        "target_noise_clip": Hyperparameter(0.5, "that noise stays within this of 0", 0.0, 10.0),
        "policy_delay": Hyperparameter(2, "gradient steps of the critics for each of the actor", 1, 1000),
    },
)

_SOFT = {
    **_OFF_POLICY,
    "critics": Hyperparameter(2, "critics in the ensemble", 1, 100, structural=True),
    "critic_subset": Hyperparameter(0, "critics drawn for each target (REDQ); 0: all", 0, 100),
    "critic_reduction": Hyperparameter("min", "what the critics say together", choices=("min", "mean")),
    "initial_temperature": Hyperparameter(1.0, "first weight of the entropy", 1e-8, 1e4, scale="log"),
    "automatic_temperature": Hyperparameter(True, "move it to where the policy has the target entropy"),
    "target_entropy_scale": Hyperparameter(1.0, "that entropy, in units of what the paper takes", 0.0, 100.0),
}

SAC = Algorithm("soft actor-critic (Haarnoja et al. 2018); REDQ by settings (Chen et al. 2021)", _CONTINUOUS, _SOFT)
SAC_DISCRETE = Algorithm(
    "soft actor-critic for choices (Christodoulou 2019)",
    _DISCRETE,
    {
        **_SOFT,
        "target_entropy_scale": Hyperparameter(0.5, "entropy aimed at, in units of an even choice's", 0.0, 1.0),
    },
)

ALGORITHMS: Mapping[str, Algorithm] = {
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
    "double-dqn": DOUBLE_DQN,
    "dueling-dqn": DUELING_DQN,
    "d3qn": D3QN,
    "ddpg": DDPG,
    "td3": TD3,
    "sac": SAC,
    "sac-discrete": SAC_DISCRETE,
}

SIMULATORS: Mapping[str, Simulator] = {
    "cartpole": Simulator(
        "CartPole-v1's equations, all environments in a few operations, on a GPU too", "discrete", on_gpu=True
    ),
    "pendulum": Simulator("Pendulum-v1's, the same way", "continuous", on_gpu=True),
    "acrobot": Simulator("Acrobot-v1's, the same way", "discrete", on_gpu=True),
    "mountaincar": Simulator("MountainCar-v0's, the same way", "discrete", on_gpu=True),
    "stocks": Simulator("stock trading (FinRL's MDP), thousands of accounts a tensor", "continuous", on_gpu=True),
    **{
        f"mujoco:{task}": Simulator(f"Gymnasium's {task}, all environments stepped by one call of MuJoCo", "continuous")
        for task in ("Ant-v5", "Humanoid-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    },
    "warp:ant": Simulator(
        "MuJoCo's ant for thousands of environments on a GPU, by MuJoCo Warp", "continuous", on_gpu=True
    ),
    "warp:humanoid": Simulator("MuJoCo's humanoid, the same way", "continuous", on_gpu=True),
    "<Gymnasium id>": Simulator("any registered Gymnasium environment, for instance CartPole-v1 or gym:Ant-v5"),
    "envpool:<task>": Simulator("EnvPool's C++ environments on a pool of threads, for instance envpool:Ant-v5"),
    "atari:<game>": Simulator("the Arcade Learning Environment with the usual preprocessing", "discrete"),
    "isaacgym:<task>": Simulator("NVIDIA's Isaac Gym, in an interpreter of its own", "continuous", on_gpu=True),
    "isaaclab:<id>": Simulator("NVIDIA's Isaac Lab, in a process of its own", "continuous", on_gpu=True),
    "grpc://<host>:<port>": Simulator("a SimulatorService, in any language"),
    "python:<module>:<factory>": Simulator("your own: a function that returns a simulator or a Gymnasium environment"),
}


def steps_on_gpu(id: str) -> bool:
    """Whether what an environment's id names steps on a GPU where there is one."""
    families = {name.partition("<")[0]: entry for name, entry in SIMULATORS.items() if "<" in name}
    family = next((entry for prefix, entry in families.items() if prefix and id.startswith(prefix)), None)
    entry = SIMULATORS.get(id, family)
    return entry is not None and entry.on_gpu


FUSION_MODES: Mapping[str, str] = {
    "average": "every so many updates, the mean of the learners' parameters and moments",
    "allreduce": "at every gradient step, the mean of the learners' gradients",
    "diloco": "every so many updates, an outer step with momentum along the mean change (Douillard et al. 2023)",
}

PRECISIONS: Mapping[str, str] = {
    "float32": "products of matrices as exact as they come",
    "tf32": "rounded to 10 bits of mantissa on the way in, where a GPU can",
    "bfloat16": "rounded to 7 bits of mantissa on the way in, where the hardware can",
}

PLANES: Mapping[str, str] = {
    "auto": "the first of the others that passes its self-test",
    "shared": "memory of one host that its processes map",
    "grpc": "messages, between any two processes",
    "cuda": "memory of one GPU that its processes map; simulators step there",
    "group": "NCCL between GPUs, within a host or between hosts; gloo between processors",
}

STRATEGIES: Mapping[str, str] = {
    "tournament": "the best of a few candidates drawn at random becomes the parent; its hyperparameters mutate",
    "softmax": "a candidate becomes the parent the more likely, the higher its score; its hyperparameters mutate",
    "truncation": "the worst of a population continue from the best, perturbed (PBT, Jaderberg et al. 2017)",
    "dexpbt": "the same, if the gap is real and among peers of no more experience (Petrenko et al. 2023)",
    "pb2": "the same, with hyperparameters from a Gaussian-process bandit (Parker-Holder et al. 2020)",
    "generational": "every generation restarts from the best of the ones before (FinRL-Podracer, Li et al. 2021)",
    "random-search": "every agent is fresh; the control that evolution must beat",
}
