"""Trains one trial of a study with Stable-Baselines3's PPO, for Optuna and for Ray Tune.

The environments, their number, the rollout, the network and normalization are those of podrace's agents.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.comparison.tasks import Prior
from benchmarks.comparison.trial_log import Entry, TrialLog
from benchmarks.comparison.vector import SimulatorVecEnv
from simulators import make

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
EVALUATION_SEED = 10_000_019
CLIPPED = 10.0
"""Normalized observations are clipped to this size, as podrace's are."""


@dataclass(frozen=True)
class StudyRequest:
    """What a study is asked to do."""

    method: str
    """Pruner or scheduler."""
    environment: str
    count: int
    options: Mapping[str, Any]
    evaluation_options: Mapping[str, Any]
    """Options of the environments in which policies are scored."""
    defaults: Mapping[str, Any]
    """Hyperparameters by podrace's names."""
    priors: Mapping[str, Mapping[str, Any]]
    """What is searched: fields of tasks.Prior by name."""
    first_default: bool
    """Whether the first trial has the default values."""
    seed: int
    seconds: float
    every_steps: int
    trial_steps: int
    episodes: int
    """Greedy episodes of a score."""
    cores: int
    """Number of trials at a time, on one thread each."""
    moments: int
    folder: str
    """Folder for logs and policies."""

    def prior(self, name: str) -> Prior:
        """Returns the prior of a hyperparameter."""
        return Prior(**self.priors[name])

    @property
    def reports(self) -> int:
        """Scores of a trial that is not stopped early."""
        return max(1, self.trial_steps // self.every_steps)


class Trial:
    """A trial in training.

    trial = Trial(request, values, name="trial-0", began=time.time())
    score = trial.advance()
    """

    def __init__(
        self, request: StudyRequest, values: Mapping[str, Any], name: str, began: float, log: TrialLog
    ) -> None:
        """Makes environments and networks.

        Args:
            request: The study.
            values: Searched hyperparameters, by podrace's names.
            name: Name of the trial.
            began: Wall-clock time at which the study began, in seconds since 1970.
            log: Receives scores and policies.
        """
        self.request, self.name, self._began, self._log = request, name, began, log
        self.settings = {**request.defaults, **values}
        self._environments = make_environments(request, self.settings)
        self.model = make_model(self._environments, self.settings, request.seed)
        self._evaluation = make(request.environment, request.episodes, options=request.evaluation_options)

    @property
    def steps(self) -> int:
        """Environment steps of the trial, including those behind a checkpoint that it started from."""
        return int(self.model.num_timesteps)

    def advance(self) -> float:
        """Trains until the next score is due, and returns it."""
        before = self.steps
        self.model.learn(self.request.every_steps, reset_num_timesteps=False)
        returns = self._score()
        score = float(np.mean(returns))
        path = self._log.new_policy(score) if math.isfinite(score) else None
        if path is not None:
            self.save(path)
        self._log.add(
            Entry(
                seconds=time.time() - self._began,
                steps=self.steps - before,
                score=score if math.isfinite(score) else -1e30,
                error=float(np.std(returns, ddof=1)) / math.sqrt(len(returns)),
                policy=str(path or ""),
                trial_steps=self.steps,
                trial=self.name,
            )
        )
        return score if math.isfinite(score) else -1e30

    def save(self, path: Path) -> None:
        """Writes what the policy needs for acting."""
        statistics = self._environments.obs_rms if isinstance(self._environments, VecNormalize) else None
        observed = None if statistics is None else [torch.as_tensor(part) for part in (statistics.mean, statistics.var)]
        policy: Any = self.model.policy
        torch.save(
            {"state": policy.state_dict(), "observed": observed, "hidden_sizes": list(self.settings["hidden_sizes"]),
             "activation": self.settings["activation"]},
            path,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Returns everything that another trial needs to continue from here."""
        normalizer = self._environments
        return {
            "parameters": self.model.get_parameters(),
            "steps": self.steps,
            "statistics": (normalizer.obs_rms, normalizer.ret_rms) if isinstance(normalizer, VecNormalize) else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of another trial, with its own hyperparameters."""
        self.model.set_parameters(state["parameters"])
        self.model.num_timesteps = state["steps"]
        if isinstance(self._environments, VecNormalize) and state["statistics"]:
            self._environments.obs_rms, self._environments.ret_rms = state["statistics"]

    def close(self) -> None:
        """Frees the environments."""
        self._environments.close()
        self._evaluation.close()

    def _score(self) -> list[float]:
        normalizer = self._environments.obs_rms if isinstance(self._environments, VecNormalize) else None
        observed = None if normalizer is None else (normalizer.mean, normalizer.var)
        policy: Any = self.model.policy
        return play(self._evaluation, Actor(policy, observed, self._evaluation.action_space))


def play(simulator: Any, actor: "Actor") -> list[float]:
    """Plays the first episode of every lane; returns the returns."""
    observation = simulator.reset(EVALUATION_SEED)
    total, alive = np.zeros(simulator.count), np.ones(simulator.count, bool)
    while alive.any():
        step = simulator.step(actor.act(observation))
        total += np.where(alive, step.reward.numpy(), 0.0)
        alive &= ~(step.terminated | step.truncated).numpy()
        observation = step.observation
    return [float(value) for value in total]


class Actor:
    """Acts greedily with a policy of Stable-Baselines3. See agentpod.models.actors for the interface."""

    def __init__(self, policy: Any, observed: tuple[Any, Any] | None, action_space: Any) -> None:
        """Acts with a policy.

        Args:
            policy: The policy.
            observed: Mean and variance that observations are normalized by; None: they are not.
            action_space: podrace's action space.
        """
        self._policy, self._observed, self._space = policy, observed, action_space
        policy.set_training_mode(False)

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        """Returns actions in the environment's units."""
        seen = observation.numpy()
        if self._observed is not None:
            mean, variance = self._observed
            seen = np.clip((seen - mean) / np.sqrt(variance + 1e-8), -CLIPPED, CLIPPED)
        with torch.no_grad():
            action = self._policy._predict(torch.as_tensor(seen, dtype=torch.float32), deterministic=True)
        if self._space.kind == "discrete":
            return action.reshape(-1)
        low, high = (torch.tensor(bound).reshape(self._space.shape) for bound in (self._space.low, self._space.high))
        return torch.clamp(action.reshape(-1, *self._space.shape), low, high)

    def reset(self, done: torch.Tensor) -> None:
        """Has no recurrent state."""


def load_actor(path: Path, simulator: Any) -> Actor:
    """Loads a policy that a trial has saved.

    Args:
        path: File of the policy.
        simulator: Where it acts.
    """
    from benchmarks.comparison.vector import gymnasium_space

    saved = torch.load(path, weights_only=True)
    policy = ActorCriticPolicy(
        gymnasium_space(simulator.observation_space),
        gymnasium_space(simulator.action_space),
        lambda _: 0.0,
        **architecture(saved["hidden_sizes"], saved["activation"]),
    )
    policy.load_state_dict(saved["state"])
    observed = saved["observed"] and tuple(part.numpy() for part in saved["observed"])
    return Actor(policy, observed, simulator.action_space)


def architecture(hidden_sizes: list[int], activation: str) -> dict[str, Any]:
    """Returns the arguments of a policy with separate networks for actor and critic, as podrace has them."""
    sizes = [int(size) for size in hidden_sizes]
    return {"net_arch": {"pi": sizes, "vf": sizes}, "activation_fn": ACTIVATIONS[activation]}


def make_environments(request: StudyRequest, settings: Mapping[str, Any]) -> Any:
    """Makes the training environments, normalized as podrace's default is."""
    environments = SimulatorVecEnv(request.environment, request.options, request.count, request.seed)
    observations, rewards = settings["normalize_observations"], settings["normalize_rewards"]
    if not (observations or rewards):
        return environments
    return VecNormalize(
        environments, norm_obs=observations, norm_reward=rewards, clip_obs=CLIPPED, gamma=settings["discount"]
    )


def make_model(environments: Any, settings: Mapping[str, Any], seed: int) -> Any:
    """Makes PPO with the settings translated to its own names."""
    return stable_baselines3.PPO(
        "MlpPolicy",
        environments,
        learning_rate=float(settings["learning_rate"]),
        n_steps=int(settings["horizon"]),
        batch_size=int(settings["minibatch_size"]),
        n_epochs=int(settings["epochs"]),
        gamma=float(settings["discount"]),
        gae_lambda=float(settings["gae_lambda"]),
        clip_range=float(settings["clip_range"]),
        ent_coef=float(settings["entropy_coefficient"]),
        vf_coef=float(settings["value_coefficient"]),
        max_grad_norm=float(settings["maximum_gradient_norm"]),
        policy_kwargs=architecture(settings["hidden_sizes"], settings["activation"]),
        seed=seed,
        device="cpu",
    )
