"""Measures RLlib (its new API stack) for `peers.py`, with its own defaults for everything a request does not set.

On one core it samples in the learning process. On two, two processes sample with half of the environments each, and
alternate with the learner. Ray runs without dashboard, on 127.0.0.1, in a temporary folder, and is shut down after
every measurement so that it uses no CPU time during others.
"""

import contextlib
import importlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from loops.process import EPISODES, Answer, Measure, Rate, Request, Target, serve

LOGICAL_CPUS = 4
MAXIMUM_ITERATIONS = 10**9
ITERATION_STEPS = 64
"""Minimum number of environment steps between two checks of the clock."""


def load(threads: int) -> Measure:
    """Imports RLlib; returns the function that answers requests."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    # For the processes that only sample.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("ppo", "sac"):
        importlib.import_module(f"ray.rllib.algorithms.{name}")
    return measure


def measure(request: Request, cores: int) -> Answer:
    """Trains until the rate is measured or the target is reached."""
    with ray_running():
        goal = Rate(request) if request.measure == "rate" else Target(request, lambda: evaluate(algorithm))
        algorithm = make_config(request, runners=0 if cores == 1 else cores).build_algo()
        steps = 0
        try:
            while not goal.over(steps):
                steps = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        finally:
            algorithm.stop()
    return goal.answer


@contextlib.contextmanager
def ray_running() -> Iterator[None]:
    """Runs a Ray cluster for this process."""
    import ray

    # A short path: those of Ray's sockets are limited in length.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        ray.init(
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            yield
        finally:
            ray.shutdown()


def make_config(request: Request, runners: int) -> Any:
    """Translates a request to RLlib's configuration."""
    settings = request.settings
    make = ppo_config if request.algorithm == "ppo" else sac_config
    config = make(settings, request.count, runners)
    normalizer: dict[str, Any] = {}
    if settings.get("normalize_observations"):
        from ray.rllib.connectors.env_to_module import MeanStdFilter

        # RLlib has no normalization of rewards.
        normalizer["env_to_module_connector"] = lambda *_, **__: MeanStdFilter()
    return (
        config.environment(request.environment)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=request.count // max(runners, 1),
            rollout_fragment_length=settings["horizon"],
            **normalizer,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .evaluation(
            # Evaluations are triggered by `evaluate` only; without an interval the runners would not be created.
            evaluation_interval=MAXIMUM_ITERATIONS if request.measure == "target" else None,
            evaluation_duration=EPISODES,
            evaluation_duration_unit="episodes",
            evaluation_num_env_runners=0,
            evaluation_config={
                "explore": False,
                "num_envs_per_env_runner": EPISODES,
                "metrics_num_episodes_for_smoothing": EPISODES,
            },
        )
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=ITERATION_STEPS)
        .debugging(seed=request.seed, log_level="ERROR")
    )


def network(settings: Any, **more: Any) -> Any:
    """Configures separate networks of actor and critic."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    hidden = list(settings["hidden_sizes"])
    return DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation=settings["activation"], **more)


def ppo_config(settings: Any, count: int, runners: int) -> Any:
    """Configures PPO without the KL penalty that RLlib adds to the clipping by default."""
    from ray.rllib.algorithms.ppo import PPOConfig

    return (
        PPOConfig()
        .training(
            lr=settings["learning_rate"],
            gamma=settings["discount"],
            lambda_=settings["gae_lambda"],
            clip_param=settings["clip_range"],
            vf_clip_param=float("inf"),
            entropy_coeff=settings["entropy_coefficient"],
            vf_loss_coeff=settings["value_coefficient"],
            grad_clip=settings["maximum_gradient_norm"],
            use_kl_loss=False,
            train_batch_size_per_learner=settings["horizon"] * count,
            minibatch_size=settings["minibatch_size"],
            num_epochs=settings["epochs"],
        )
        .rl_module(model_config=network(settings, vf_share_layers=False))
    )


def sac_config(settings: Any, count: int, runners: int) -> Any:
    """Configures SAC with as many gradient steps as environment steps, and uniform sampling from the replay buffer."""
    from ray.rllib.algorithms.sac import SACConfig

    # RLlib counts one runner more than there are, if there are any (calculate_rr_weights in its dqn.py).
    counted_steps = settings["horizon"] * (count // max(runners, 1)) * (runners + 1)
    return (
        SACConfig()
        .training(
            actor_lr=settings["learning_rate"],
            critic_lr=settings["learning_rate"],
            alpha_lr=settings["learning_rate"],
            gamma=settings["discount"],
            tau=settings["target_rate"],
            twin_q=True,
            target_entropy="auto",
            n_step=1,
            train_batch_size_per_learner=settings["batch_size"],
            training_intensity=settings["batch_size"] / counted_steps * count * settings["horizon"],
            num_steps_sampled_before_learning_starts=settings["warmup_steps"],
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": settings["replay_capacity"]},
        )
        .rl_module(model_config=network(settings))
    )


def evaluate(algorithm: Any) -> float:
    """Returns the mean return of the first EPISODES greedy episodes to end; a lane that ends early starts another."""
    return float(algorithm.evaluate()["env_runners"]["episode_return_mean"])


if __name__ == "__main__":
    serve(load)
