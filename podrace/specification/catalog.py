"""Lists the algorithms, simulators and strategies that a specification can name, with all hyperparameters.

The module does not import the implementations or torch, so specifications are checked before a pod starts. An
architecture test compares it with the implementations.
"""

from collections.abc import Mapping
from dataclasses import replace

from podrace.specification.known.hyperparameters import Algorithm as Algorithm
from podrace.specification.known.hyperparameters import Hyperparameter as Hyperparameter
from podrace.specification.known.hyperparameters import Search as Search
from podrace.specification.known.hyperparameters import Value as Value
from podrace.specification.known.simulators import SIMULATORS as SIMULATORS
from podrace.specification.known.simulators import Simulator as Simulator
from podrace.specification.known.simulators import simulator_of as simulator_of
from podrace.specification.known.simulators import steps_on_gpu as steps_on_gpu
from podrace.specification.known.strategies import STRATEGIES as STRATEGIES

_WIDE_ON_POLICY_RATE, _WIDE_OFF_POLICY_RATE = Search(1e-5, 1e-1), Search(1e-5, 1e-2)
_ALL, _CONTINUOUS, _DISCRETE = (
    ("continuous", "discrete", "multi_discrete", "multi_binary"),
    ("continuous",),
    ("discrete",),
)


def _network(
    hidden_sizes: tuple[int, ...], activation: str, *, normalize_observations: bool
) -> dict[str, Hyperparameter]:
    return {
        "hidden_sizes": Hyperparameter(hidden_sizes, "widths of the hidden layers", 1, 1e5, structural=True),
        "activation": Hyperparameter(
            activation, "activation between layers", choices=("tanh", "relu", "elu"), structural=True
        ),
        "normalize_observations": Hyperparameter(
            normalize_observations,
            "normalize by running mean and variance; images of bytes are divided by 255 instead",
            structural=True,
        ),
        "torso": Hyperparameter(
            "none",
            "convolutional layers for images, before the hidden layers",
            choices=("none", "nature", "small"),
            structural=True,
        ),
        "network_class": Hyperparameter("", "class of the policy's network; empty: hidden_sizes", structural=True),
    }


_DISCOUNT = Hyperparameter(
    0.99, "weight of the next step's return", 0.0, 1.0, scale="reverse_log", wide=Search(0.9, 0.9999)
)


def _learning_rate(default: float, search: Search, wide: Search) -> Hyperparameter:
    return Hyperparameter(default, "step size of Adam", 1e-7, 1.0, scale="log", search=search, wide=wide)


def _gae_lambda(default: float, search: Search) -> Hyperparameter:
    meaning, wide = "bias-variance trade-off of the advantages", Search(0.8, 0.999, zero_probability=0.1)
    return Hyperparameter(default, meaning, 0.0, 1.0, scale="reverse_log", search=search, wide=wide)


def _target_rate(default: float, wide: Search) -> Hyperparameter:
    meaning = "fraction by which the target networks move to the trained ones"
    return Hyperparameter(default, meaning, 1e-6, 1.0, scale="log", wide=wide)


_SCHEDULE = {
    "learning_rate_schedule": Hyperparameter(
        "", "function that returns a factor of the learning rate; empty: learning_rate_steps"
    ),
    "learning_rate_steps": Hyperparameter(
        0,
        "environment steps of a learner, with those of ancestors, over which the learning rate decays; 0: constant",
        0,
        1e12,
    ),
    "final_learning_rate": Hyperparameter(0.05, "learning rate after the decay, relative to learning_rate", 0.0, 1.0),
}

_ON_POLICY = {
    **_network((64, 64), "tanh", normalize_observations=True),
    "learning_rate": _learning_rate(3e-4, Search(1e-4, 3e-3), _WIDE_ON_POLICY_RATE),
    **_SCHEDULE,
    "discount": _DISCOUNT,
    "gae_lambda": _gae_lambda(0.95, Search(0.9, 0.99)),
    "entropy_coefficient": Hyperparameter(
        0.001,
        "weight of the entropy bonus",
        0.0,
        1.0,
        scale="log",
        search=Search(1e-5, 0.02, zero_probability=0.1),
        wide=Search(1e-8, 0.1),
    ),
    "value_coefficient": Hyperparameter(0.5, "weight of the value loss", 0.0, 100.0),
    "maximum_gradient_norm": Hyperparameter(0.5, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "recurrent_size": Hyperparameter(
        0, "width of the recurrent layer (GRU); 0: no recurrence", 0, 1e5, structural=True
    ),
    "horizon": Hyperparameter(128, "steps of each environment in a rollout", 1, 1e5),
    "normalize_rewards": Hyperparameter(
        True, "divide rewards by the running deviation of the discounted return, clipped to [-10, 10]", structural=True
    ),
    "normalize_advantages": Hyperparameter(True, "scale advantages to mean 0 and variance 1 in each minibatch"),
    "adam_epsilon": Hyperparameter(1e-5, "added to Adam's denominator", 1e-12, 1.0, scale="log"),
    "initial_log_std": Hyperparameter(
        0.0, "logarithm of the initial standard deviation of actions", -10.0, 5.0, structural=True
    ),
}

PPO = Algorithm(
    help="proximal policy optimization: clipped surrogate, generalized advantages (Schulman et al. 2017)",
    action_kinds=_ALL,
    hyperparameters={
        **_ON_POLICY,
        "clip_range": Hyperparameter(
            0.2, "trust region of the probability ratio", 0.01, 1.0, search=Search(0.1, 0.3), wide=Search(0.05, 0.4)
        ),
        "value_clip_range": Hyperparameter(0.0, "clip range of the value update; 0: no clipping", 0.0, 100.0),
        "epochs": Hyperparameter(4, "passes over each rollout", 1, 100, wide=Search(1, 10)),
        "minibatch_size": Hyperparameter(
            512, "most transitions in each gradient step", 1, 1e7, scale="log", wide=Search(64, 1024)
        ),
        "target_kl": Hyperparameter(
            0.0, "KL divergence above which the epochs of an update stop early; 0: never", 0.0, 10.0
        ),
        "desired_kl": Hyperparameter(
            0.0, "KL divergence to which the learning rate adapts; 0: the learning rate does not adapt", 0.0, 10.0
        ),
    },
)

A2C = Algorithm(
    help="advantage actor-critic: one policy gradient step for each short rollout (Mnih et al. 2016)",
    action_kinds=_ALL,
    hyperparameters={
        **_ON_POLICY,
        "learning_rate": _learning_rate(1e-3, Search(2e-4, 5e-3), _WIDE_ON_POLICY_RATE),
        "gae_lambda": _gae_lambda(1.0, Search(0.9, 0.99, zero_probability=0.2)),
        "horizon": Hyperparameter(8, "steps of each environment in a rollout", 1, 1e5, scale="log", wide=Search(4, 64)),
        "normalize_advantages": Hyperparameter(False, "scale advantages to mean 0 and variance 1 in each rollout"),
    },
)

_OFF_POLICY = {
    **_network((256, 256), "relu", normalize_observations=False),
    "learning_rate": _learning_rate(3e-4, Search(1e-4, 3e-3), _WIDE_OFF_POLICY_RATE),
    **_SCHEDULE,
    "discount": _DISCOUNT,
    "horizon": Hyperparameter(1, "steps of each environment between two policy versions", 1, 1e5),
    "n_step": Hyperparameter(1, "rewards to sum before bootstrapping from a value", 1, 1000),
    "batch_size": Hyperparameter(
        256, "replayed steps in each gradient step", 1, 1e6, scale="log", wide=Search(64, 512)
    ),
    "updates_per_step": Hyperparameter(1.0, "gradient steps per environment step", 1e-4, 1e3, scale="log"),
    "warmup_steps": Hyperparameter(1000, "environment steps before the first update", 0, 1e9),
    "replay_capacity": Hyperparameter(1_000_000, "environment steps in the replay memory", 1, 1e9, structural=True),
    "prioritized": Hyperparameter(
        False, "prioritized replay: sample by the size of the last TD error", structural=True
    ),
    "priority_exponent": Hyperparameter(0.6, "0: sample uniformly, 1: in proportion to the error", 0.0, 1.0),
    "priority_correction": Hyperparameter(0.4, "initial exponent of the importance weights; it grows to 1", 0.0, 1.0),
    "priority_annealing_steps": Hyperparameter(
        100_000, "environment steps, with those of ancestors, until the exponent of importance weights is 1", 1, 1e12
    ),
    "target_rate": _target_rate(0.005, Search(1e-3, 0.05)),
    "target_period": Hyperparameter(1, "gradient steps between target updates", 1, 1e6),
    "maximum_gradient_norm": Hyperparameter(0.0, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "adam_epsilon": Hyperparameter(1e-8, "added to Adam's denominator", 1e-12, 1.0, scale="log"),
}

_EXPLORATION_STEPS = "environment steps, with those of ancestors, until the final probability"
_DQN = {
    **_OFF_POLICY,
    "hidden_sizes": Hyperparameter((128, 128), "widths of the hidden layers", 1, 1e5, structural=True),
    "horizon": Hyperparameter(8, "steps of each environment between two policy versions", 1, 1e5),
    "learning_rate": _learning_rate(5e-4, Search(1e-4, 2e-3), _WIDE_OFF_POLICY_RATE),
    "n_step": Hyperparameter(5, "rewards to sum before bootstrapping from a value", 1, 1000, wide=Search(1, 10)),
    "batch_size": Hyperparameter(
        128, "replayed steps in each gradient step", 1, 1e6, scale="log", wide=Search(32, 512)
    ),
    "replay_capacity": Hyperparameter(100_000, "environment steps in the replay memory", 1, 1e9, structural=True),
    "updates_per_step": Hyperparameter(0.25, "gradient steps per environment step", 1e-4, 1e3, scale="log"),
    "target_rate": _target_rate(0.01, Search(1e-3, 0.1)),
    "maximum_gradient_norm": Hyperparameter(10.0, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "initial_exploration": Hyperparameter(1.0, "initial probability of a random action", 0.0, 1.0),
    "final_exploration": Hyperparameter(0.05, "final probability of a random action", 0.0, 1.0, wide=Search(0.01, 0.2)),
    "exploration_steps": Hyperparameter(20_000, _EXPLORATION_STEPS, 1, 1e12, scale="log", wide=Search(2_000, 100_000)),
    "huber_delta": Hyperparameter(1.0, "error above which the loss is linear; 0: always quadratic", 0.0, 1e6),
}

DQN = Algorithm("deep Q-learning (Mnih et al. 2015)", _DISCRETE, _DQN)
DOUBLE_DQN = Algorithm("DQN with double Q-learning targets (van Hasselt et al. 2016)", _DISCRETE, _DQN)
DUELING_DQN = Algorithm("DQN with a dueling network (Wang et al. 2016)", _DISCRETE, _DQN)
D3QN = Algorithm("dueling double DQN, with n-step targets and priorities as settings", _DISCRETE, _DQN)

_DDPG = {
    **_OFF_POLICY,
    "learning_rate": _learning_rate(1e-3, Search(1e-4, 3e-3), _WIDE_OFF_POLICY_RATE),
    "critics": Hyperparameter(1, "critics in the ensemble; their minimum is the target", 1, 100, structural=True),
    "initial_exploration": Hyperparameter(
        1.0, "action noise during the warm-up, in units of half the action range", 0.0, 10.0
    ),
    "exploration": Hyperparameter(
        0.1,
        "action noise after the warm-up, in units of half the action range",
        0.0,
        10.0,
        search=Search(0.03, 0.3),
        wide=Search(0.01, 0.5),
    ),
}

DDPG = Algorithm("deep deterministic policy gradients (Lillicrap et al. 2016)", _CONTINUOUS, _DDPG)
TD3 = Algorithm(
    "twin delayed DDPG (Fujimoto et al. 2018)",
    _CONTINUOUS,
    {
        **_DDPG,
        "critics": Hyperparameter(2, "critics in the ensemble; their minimum is the target", 1, 100, structural=True),
        "target_period": Hyperparameter(2, "gradient steps between target updates", 1, 1e6),
        "target_noise": Hyperparameter(
            0.2,
            "noise on the target policy's actions, in units of half the action range",
            0.0,
            10.0,
            wide=Search(0.05, 0.5),
        ),
        "target_noise_clip": Hyperparameter(0.5, "largest magnitude of the target noise", 0.0, 10.0),
        "policy_delay": Hyperparameter(
            2, "gradient steps of the critics per gradient step of the actor", 1, 1000, wide=Search(1, 4)
        ),
    },
)

_TEMPERATURE = "initial weight of the entropy; with automatic_temperature, a child begins with its parent's weight"
_SOFT = {
    **_OFF_POLICY,
    "critics": Hyperparameter(2, "critics in the ensemble", 1, 100, structural=True),
    "critic_subset": Hyperparameter(0, "critics drawn for each target (REDQ); 0: all", 0, 100),
    "critic_reduction": Hyperparameter("min", "how the values of the critics are combined", choices=("min", "mean")),
    "initial_temperature": Hyperparameter(1.0, _TEMPERATURE, 1e-8, 1e4, scale="log"),
    "automatic_temperature": Hyperparameter(True, "adapt the weight of the entropy to reach the target entropy"),
    "target_entropy_scale": Hyperparameter(
        1.0,
        "target entropy, as a multiple of the paper's (minus the number of action dimensions)",
        0.0,
        100.0,
        wide=Search(0.25, 2.0),
    ),
    "policy_delay": Hyperparameter(1, "gradient steps of the critics per step of actor and temperature", 1, 1000),
}

SAC = Algorithm("soft actor-critic (Haarnoja et al. 2018); REDQ by settings (Chen et al. 2021)", _CONTINUOUS, _SOFT)
SAC_DISCRETE = Algorithm(
    "soft actor-critic for discrete actions (Christodoulou 2019)",
    _DISCRETE,
    {
        **_SOFT,
        "target_entropy_scale": Hyperparameter(
            0.5, "target entropy, as a fraction of that of uniformly random actions", 0.0, 1.0, wide=Search(0.1, 0.95)
        ),
    },
)

_SHARED_REWARD = "reward each agent with the sum of the rewards of all agents of its environment"
_SHARE_PARAMETERS = Hyperparameter(
    True, "one policy and one critic for all agents; false: separate ones for each agent", structural=True
)
IPPO = Algorithm(
    "independent PPO for teams: critics see what their agent sees (de Witt et al. 2020)",
    _ALL,
    {
        **PPO.hyperparameters,
        "shared_reward": Hyperparameter(False, _SHARED_REWARD),
        "share_parameters": _SHARE_PARAMETERS,
    },
    teams=True,
)
MAPPO = Algorithm(
    "multi-agent PPO for teams: as ippo, with a critic that sees all agents (Yu et al. 2022)",
    _ALL,
    {
        **PPO.hyperparameters,
        "shared_reward": Hyperparameter(True, _SHARED_REWARD),
        "share_parameters": _SHARE_PARAMETERS,
    },
    teams=True,
)

_VDN = {
    **_OFF_POLICY,
    **{key: _DQN[key] for key in ("horizon", "learning_rate", "target_rate", "maximum_gradient_norm")},
    "hidden_sizes": Hyperparameter((64, 64), "widths of the hidden layers", 1, 1e5, structural=True),
    "batch_size": Hyperparameter(64, "replayed environment steps in each gradient step", 1, 1e6, scale="log"),
    "replay_capacity": Hyperparameter(
        300_000, "steps of agents in the replay memory: environment steps times agents", 1, 1e9, structural=True
    ),
    "updates_per_step": Hyperparameter(0.1, "gradient steps per environment step", 1e-4, 1e3, scale="log"),
    **{key: _DQN[key] for key in ("initial_exploration", "final_exploration")},
    "exploration_steps": Hyperparameter(50_000, _EXPLORATION_STEPS, 1, 1e12, scale="log", wide=Search(5_000, 500_000)),
    "recurrent_size": _ON_POLICY["recurrent_size"],
    "sequence_length": Hyperparameter(
        8, "with recurrent_size: steps of each sampled sequence that are trained on", 1, 10_000
    ),
    "burn_in": Hyperparameter(
        8, "with recurrent_size: steps before a sampled sequence that bring the state up to date", 0, 10_000
    ),
}
VDN = Algorithm(
    "value decomposition for teams: the values of the agents are added (Sunehag et al. 2018)",
    _DISCRETE,
    _VDN,
    teams=True,
)
QMIX = Algorithm(
    "value decomposition for teams: a network mixes the values of the agents monotonically (Rashid et al. 2018)",
    _DISCRETE,
    {
        **_VDN,
        "mixing_size": Hyperparameter(
            32, "units of the hidden layer of the mixing network", 1, 10_000, structural=True
        ),
    },
    teams=True,
)

_CENTRAL_CRITIC = {
    "hidden_sizes": Hyperparameter((64, 64), "widths of the hidden layers", 1, 1e5, structural=True),
    "horizon": _VDN["horizon"],
    "discount": replace(_DISCOUNT, default=0.95),
    "replay_capacity": _VDN["replay_capacity"],
    "batch_size": Hyperparameter(
        256, "replayed environment steps in each gradient step", 1, 1e6, scale="log", wide=Search(64, 512)
    ),
    "updates_per_step": Hyperparameter(0.05, "gradient steps per environment step", 1e-4, 1e3, scale="log"),
    "target_rate": _target_rate(0.01, Search(1e-3, 0.05)),
    "maximum_gradient_norm": Hyperparameter(0.5, "gradients are scaled down to this norm; 0: never", 0.0, 1e6),
    "shared_reward": Hyperparameter(False, _SHARED_REWARD),
}
MADDPG = Algorithm(
    "multi-agent DDPG for teams: critics see what all agents see and do (Lowe et al. 2017)",
    ("continuous", "discrete"),
    {
        **_DDPG,
        **_CENTRAL_CRITIC,
        "softmax_temperature": Hyperparameter(1.0, "of the Gumbel-softmax of discrete actions", 1e-3, 1e3, scale="log"),
        "logit_penalty": Hyperparameter(1e-3, "weight of squared outputs, for discrete actions", 0.0, 1e3),
    },
    teams=True,
)
MATD3 = Algorithm(
    "multi-agent TD3 for teams: as maddpg, with twin critics and delayed actors (Ackermann et al. 2019)",
    _CONTINUOUS,
    {**TD3.hyperparameters, **_CENTRAL_CRITIC},
    teams=True,
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
    "ippo": IPPO,
    "mappo": MAPPO,
    "vdn": VDN,
    "qmix": QMIX,
    "maddpg": MADDPG,
    "matd3": MATD3,
}

FUSION_MODES: Mapping[str, str] = {
    "average": "every `every_updates` updates, the mean of the learners' parameters and optimizer moments",
    "allreduce": "at every gradient step, the mean of the learners' gradients",
    "diloco": "every `every_updates` updates, an outer Nesterov step on the mean change (Douillard et al. 2023)",
}

PRECISIONS: Mapping[str, str] = {
    "float32": "matrix products and convolutions in full single precision",
    "tf32": "inputs of matrix products and convolutions rounded to 10 bits of mantissa, on GPUs that support it",
    "bfloat16": "inputs of matrix products rounded to 7 bits of mantissa, on CPUs that support it; on GPUs as `tf32`",
}

PLANES: Mapping[str, str] = {
    "auto": "the first of `cuda`, `group`, `shared` and `grpc` that passes its self-test",
    "shared": "shared memory, between processes of one host",
    "grpc": "messages over gRPC, between any two processes",
    "cuda": "memory of one GPU, shared by processes; simulators step there",
    "group": "NCCL between GPUs, within a host or between hosts; gloo between CPUs",
}
