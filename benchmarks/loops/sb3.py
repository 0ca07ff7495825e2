"""Measures Stable-Baselines3 for `peers.py`, with its own defaults for everything a request does not set.

Environments are made by its `make_vec_env`: all in the learning process (DummyVecEnv), which is its default. One
process per environment (SubprocVecEnv) costs a round trip of messages per step: on two cores it was slower even with
Ant-v5.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from loops.process import EPISODES, Answer, Measure, Rate, Request, Target, serve

FOREVER_STEPS = 10**9
ACTIVATIONS = {"tanh": "Tanh", "relu": "ReLU"}


def load(threads: int) -> Measure:
    """Imports it; returns the function that answers requests."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    importlib.import_module("stable_baselines3.common.env_util")
    return measure


def measure(request: Request, cores: int) -> Answer:
    """Trains until the rate is measured or the target is reached."""
    goal = Rate(request) if request.measure == "rate" else Target(request, lambda: evaluate(model, request))
    environments = make_environments(request, request.count)
    model = make_model(request, environments)
    callback = make_callback(goal.over)
    # Its schedules span the total steps passed to `learn`.
    total_steps = request.settings.get("schedule_steps", FOREVER_STEPS)
    try:
        model.learn(total_steps, callback=callback)
        if not callback.finished:
            goal.over(model.num_timesteps)
    finally:
        environments.close()
    return goal.answer


def make_environments(request: Request, count: int, *, training: bool = True) -> Any:
    """Makes a vector environment, with normalization if requested."""
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
    """Makes the algorithm, with the request translated to its own names."""
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
    """Translates PPO's settings; with `schedule_steps`, learning rate and clip range fall linearly to 0."""
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
    """Translates SAC's settings; two critics and an automatic temperature are its defaults."""
    return {
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["replay_capacity"],
        "learning_starts": settings["warmup_steps"],
        "batch_size": settings["batch_size"],
        "gamma": settings["discount"],
        "tau": settings["target_rate"],
        "train_freq": settings["horizon"],
        # As many gradient steps as environment steps.
        "gradient_steps": -1,
    }


def linear(initial: float) -> Callable[[float], float]:
    """Returns a linear schedule from `initial` to 0, as a function of the remaining fraction of steps."""
    return lambda remaining: initial * remaining


def make_callback(over: Callable[[int], bool]) -> Any:
    """Makes a callback that calls `over` between an update and the next rollout, which ends the training if true."""
    from stable_baselines3.common.callbacks import BaseCallback

    class EndWhenOver(BaseCallback):
        finished = False

        def _on_rollout_start(self) -> None:
            self.finished = over(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.finished

    return EndWhenOver()


def evaluate(model: Any, request: Request) -> float:
    """Returns the mean return of EPISODES greedy episodes."""
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
