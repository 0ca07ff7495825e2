"""One process of Stable-Baselines3 for `peers.py`, with its own defaults wherever a request does not say otherwise.

Environments are made by its `make_vec_env`: all in the learning process (DummyVecEnv), which is its default. A process
an environment (SubprocVecEnv) costs a round trip of messages a step: on two cores it was slower even with Ant-v5.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from loops.process import EPISODES, Answer, Measure, Rate, Request, Target, serve

FOREVER_STEPS = 10**9
ACTIVATIONS = {"tanh": "Tanh", "relu": "ReLU"}


def load(threads: int) -> Measure:
    """Imports it."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    importlib.import_module("stable_baselines3.common.env_util")
    return measure


def measure(request: Request, cores: int) -> Answer:
    """Trains until the rate is known or the target is reached."""
    goal = Rate(request) if request.measure == "rate" else Target(request, lambda: evaluate(model, request))
    environments = make_environments(request, request.count)
    model = make_model(request, environments)
    callback = make_callback(goal.over)
    # Its schedules end with the steps it is told to learn.
    total_steps = request.settings.get("schedule_steps", FOREVER_STEPS)
    try:
        model.learn(total_steps, callback=callback)
        if not callback.finished:
            goal.over(model.num_timesteps)
    finally:
        environments.close()
    return goal.answer


def make_environments(request: Request, count: int, *, training: bool = True) -> Any:
    """Environments side by side, normalised if that is asked for."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    settings = request.settings
    environments = make_vec_env(request.environment, n_envs=count, seed=request.seed if training else request.seed + 1)
    observations, rewards = settings.get("normalize_observations", False), settings.get("normalize_rewards", False)
    if not (observations or rewards):
        return environments
    return VecNormalize(
        environments,
        training=training,
        norm_obs=observations,
        norm_reward=rewards and training,
        gamma=settings["discount"],
    )


def make_model(request: Request, environments: Any) -> Any:
    """An algorithm under its own names."""
    import stable_baselines3
    import torch

    make, settings = getattr(stable_baselines3, request.algorithm.upper()), request.settings
    hidden = list(settings["hidden_sizes"])
    critic = "vf" if request.algorithm == "ppo" else "qf"
    policy = {
        "net_arch": {"pi": hidden, critic: hidden},
        "activation_fn": getattr(torch.nn, ACTIVATIONS[settings["activation"]]),
    }
    keywords = (ppo_keywords if request.algorithm == "ppo" else sac_keywords)(settings)
    return make("MlpPolicy", environments, policy_kwargs=policy, seed=request.seed, device="cpu", **keywords)


def ppo_keywords(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of PPO; with `schedule_steps`, learning rate and clip range go down to 0 in a straight line."""
    decay = linear if "schedule_steps" in settings else float
    return {
        "learning_rate": decay(settings["learning_rate"]),
        "n_steps": settings["horizon"],
        "batch_size": settings["minibatch_size"],
        "n_epochs": settings["epochs"],
        "gamma": settings["discount"],
        "gae_lambda": settings["gae_lambda"],
        "clip_range": decay(settings["clip_range"]),
        "ent_coef": settings["entropy_coefficient"],
        "vf_coef": settings["value_coefficient"],
        "max_grad_norm": settings["maximum_gradient_norm"],
    }


def sac_keywords(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of SAC; two critics and an automatic temperature are its defaults."""
    return {
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["replay_capacity"],
        "learning_starts": settings["warmup_steps"],
        "batch_size": settings["batch_size"],
        "gamma": settings["discount"],
        "tau": settings["target_rate"],
        "train_freq": settings["horizon"],
        # As many as environment steps were taken.
        "gradient_steps": -1,
    }


def linear(initial: float) -> Callable[[float], float]:
    """From `initial` to 0 with the steps that remain."""
    return lambda remaining: initial * remaining


def make_callback(over: Callable[[int], bool]) -> Any:
    """Asks `over` between an update and the next rollout, and ends the training when it says so."""
    from stable_baselines3.common.callbacks import BaseCallback

    class End(BaseCallback):
        finished = False

        def _on_rollout_start(self) -> None:
            self.finished = over(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.finished

    return End()


def evaluate(model: Any, request: Request) -> float:
    """Mean return of EPISODES greedy episodes."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    environments = make_environments(request, EPISODES, training=False)
    training = model.get_vec_normalize_env()
    if isinstance(environments, VecNormalize) and training is not None and training.norm_obs:
        environments.obs_rms = training.obs_rms
    try:
        mean: Any = evaluate_policy(model, environments, EPISODES, deterministic=True)[0]
        return float(mean)
    finally:
        environments.close()


if __name__ == "__main__":
    serve(load)
