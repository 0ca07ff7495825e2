"""One process of RLlib (its new stack) for `peers.py`, with its own defaults wherever a request does not say otherwise.

On one core it samples in the learning process; on two, by two processes with half of the environments each, between
which and the learner it goes to and fro. Ray runs without dashboard, on 127.0.0.1, in a temporary folder, and is shut
down after every measurement, so that it takes no time from others.
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
FAR_ITERATIONS = 10**9
ITERATION_STEPS = 64
"""Fewest environment steps from one look at the clock to the next."""


def load(threads: int) -> Measure:
    """Imports it."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    # Of the processes that only act.
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("ppo", "sac"):
        importlib.import_module(f"ray.rllib.algorithms.{name}")
    return measure


def measure(request: Request, cores: int) -> Answer:
    """Trains until the rate is known or the target is reached."""
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
    """A cluster of this process's own."""
    import ray

    # Short: the paths of Ray's sockets are long enough.
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
    """A configuration under its own names."""
    settings = request.settings
    make = ppo_config if request.algorithm == "ppo" else sac_config
    config = make(settings, request.count, runners)
    normalizer: dict[str, Any] = {}
    if settings.get("normalize_observations"):
        from ray.rllib.connectors.env_to_module import MeanStdFilter

        # It has none for rewards.
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
            # Never by itself; the runners are made because it could.
            evaluation_interval=FAR_ITERATIONS if request.measure == "target" else None,
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
    """Networks of actor and critic, apart."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    hidden = list(settings["hidden_sizes"])
    return DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation=settings["activation"], **more)


def ppo_config(settings: Any, count: int, runners: int) -> Any:
    """Of PPO, without the penalty that it adds to the clipping by default."""
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
    """Of SAC, with as many gradient steps as environment steps and even sampling from the replay memory."""
    from ray.rllib.algorithms.sac import SACConfig

    # It counts one runner more than there are when there are any (calculate_rr_weights in its dqn.py).
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
    """Mean return of EPISODES greedy episodes: the first to end, so that one that fails early may be played again."""
    return float(algorithm.evaluate()["env_runners"]["episode_return_mean"])


if __name__ == "__main__":
    serve(load)
