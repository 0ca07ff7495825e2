"""Implements the base of off-policy algorithms: the update-to-data ratio, sampling, target networks and state.

A subclass implements `_gradient_step` over one sampled batch, with gradients written by hand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from agentpod.algorithms.base import (
    Settings,
    linear_schedule,
    load_tensors,
    non_finite_error,
    parse_hyperparameters,
    restored_on_error,
)
from agentpod.algorithms.flat_adam import MOMENTS, FlatAdam, Reduce
from agentpod.algorithms.fusible import Fusible
from agentpod.algorithms.trainable import Trainable
from agentpod.capture.graph_replay import Record
from agentpod.experience.memory_spec import MemorySpec
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.sampled_steps import SampledSteps
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.mlp import element_count
from agentpod.models.normalizer import RunningMoments, SharedMoments
from agentpod.models.policy import Policy
from agentpod.seeding import derive_generator
from podrace.errors import InvalidArgument
from simulators.base import Space

CRITIC_OUTPUT_GAIN = 1.0
ROUNDING = 1e-6
"""Rounding tolerance of the token bucket: ten times 0.3 must allow 3 gradient steps."""
WARM_SHARE = 1.0 - 1e-4
"""The learners' mean of 1 (warm) or 0 exceeds this if all are warm: NCCL adds multiples of a rounded 1 / n, and errs by
less than 1.5e-5 for up to 1,024 learners, whereas one that is not warm lowers the mean by at least 9.7e-4."""


@dataclass(frozen=True)
class OffPolicySettings(Settings):
    """Hyperparameters of all off-policy algorithms."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, of the actor and of the critics."""
    activation: str = "relu"
    """Key of agentpod.models.mlp.ACTIVATIONS."""
    normalize_observations: bool = False
    """Whether observations are normalized by running mean and standard deviation."""
    horizon: int = 1
    """Steps of each environment between two policy versions."""
    discount: float = 0.99
    """Gamma: discount per step."""
    n_step: int = 1
    """Rewards summed before bootstrapping from a value."""
    batch_size: int = 256
    """Replayed steps per gradient step."""
    updates_per_step: float = 1.0
    """Gradient steps per environment step, over all environments."""
    warmup_steps: int = 1000
    """Environment steps to receive before the first gradient step, over all environments."""
    replay_capacity: int = 1_000_000
    """Environment steps in the replay buffer, over all environments."""
    prioritized: bool = False
    """Whether steps are sampled in proportion to their last error (Schaul et al. 2016)."""
    priority_exponent: float = 0.6
    """Alpha of prioritized sampling: 0 samples uniformly, 1 in proportion to the error."""
    priority_correction: float = 0.4
    """Initial beta of the importance weights, which increases to 1."""
    priority_annealing_steps: int = 100_000
    """Environment steps after which beta is 1."""
    target_rate: float = 0.005
    """Tau: fraction of the way that the target networks move towards the networks (Polyak averaging)."""
    target_period: int = 1
    """Gradient steps between two updates of the target networks."""
    maximum_gradient_norm: float = 0.0
    """Gradients with a larger norm are scaled down to it; 0 = no clipping."""
    adam_epsilon: float = 1e-8
    """Added to the denominator of Adam."""

    def __post_init__(self) -> None:
        """Validates the values; see Settings."""
        super().__post_init__()
        if max(self.warmup_steps, self.batch_size) > self.replay_capacity:
            name = "warmup_steps" if self.warmup_steps > self.replay_capacity else "batch_size"
            raise InvalidArgument(
                f"hyperparameter {name} = {getattr(self, name)} exceeds replay_capacity = {self.replay_capacity}: "
                "no update would ever be made; raise replay_capacity"
            )

    @property
    def memory(self) -> MemorySpec:
        """Memory of experience that the learner must allocate."""
        return MemorySpec(self.horizon, self.replay_capacity, self.prioritized, self.priority_exponent)


COUNTS = ("tokens", "environment_steps", "gradient_steps")
"""Names of the counters, which are equal on all learners that share gradients."""


class DueUpdates(NamedTuple):
    """What a gradient step updates besides the critics."""

    actor: bool
    targets: bool


class OffPolicy:
    """Base class of off-policy algorithms; see agentpod.algorithms.base.Algorithm for the loop and attributes.

    A token bucket keeps the ratio of updates to data. After the warm-up, every received segment of S environment steps
    adds S updates_per_step tokens, and every gradient step takes one. `update` makes all gradient steps that the tokens
    pay for. Until then the learner grants the workers no segment beyond the one being collected. Neither side can run
    ahead, and the ratio does not depend on how full the buffer is.

    Attributes:
        METRICS: Names of the metrics of a gradient step, in the order in which `_gradient_step` returns them.
    """

    settings_type: ClassVar[type[OffPolicySettings]]
    action_kinds: ClassVar[frozenset[str]]
    METRICS: ClassVar[tuple[str, ...]]
    _batch_type: type[Any] = TransitionBatch

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hyperparameters: Mapping[str, object],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Creates new networks; see Algorithm. The seed also determines sampled batches and the noise of updates."""
        self.hyperparameters: Any = parse_hyperparameters(self.settings_type, hyperparameters)
        settings = self.hyperparameters
        self.network, self.memory, self.update_number = settings.network, settings.memory, 0
        self._counts = {name: torch.zeros((), dtype=torch.float64) for name in COUNTS}
        self._seed, self._device = seed, torch.device(device)
        self._reduce: Reduce | None = None
        self._captured: SampledSteps | None = None
        self._due = DueUpdates(actor=True, targets=True)
        self.policy = Policy(observation_space, action_space, self.network, device=device)
        self._observations = SharedMoments((math.prod(observation_space.shape),), device)
        self._action_space, self._inputs = action_space, math.prod(observation_space.shape)
        self._network_factory = self.network.network_factory(observation_space, action_space)
        generator = derive_generator(device, seed, "initialize")
        self.policy.initialize(generator)
        self._trained = self._build_networks(generator)
        self._apply_schedules()

    # --- implemented by subclasses ----------------------------------------------------------------------------

    def _build_networks(self, generator: torch.Generator) -> dict[str, Trainable]:
        """Creates the trained networks, by name; the policy is initialized already."""
        raise NotImplementedError

    def _noise(self, updates: int, generator: torch.Generator) -> Tensor:
        """Draws the noise of several gradient steps at once: [updates, ...]; empty by default."""
        return torch.empty(updates, 0, device=generator.device)

    def _draw(self, generator: torch.Generator) -> None:
        """Draws what one gradient step needs besides its noise, into tensors that it reads; by default nothing."""

    def _is_actor_due(self) -> bool:
        """Whether the next gradient step also updates the actor, of algorithms that do not always do that."""
        return True

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Makes one gradient step; returns METRICS [metrics] and the absolute temporal-difference errors [B].

        See the invariants of agentpod.capture.graph_replay. Which of the due updates it makes is in `self._due`.
        """
        raise NotImplementedError

    def _set_exploration(self) -> None:
        """Sets the policy's exploration according to progress; by default there is nothing to set."""

    def _apply_schedules(self) -> None:
        """Sets learning rate and exploration according to progress."""
        settings = self.hyperparameters
        if settings.changes_learning_rate:
            # Where action values are close, small changes flip the greedy choice, so late steps must be small.
            for optimizer in self._optimizers():
                optimizer.rate.fill_(settings.learning_rate_after(self.environment_steps))
        self._set_exploration()

    # --- building blocks --------------------------------------------------------------------------------------

    def _actor(self, *, target: bool) -> Trainable:
        """Makes the policy's actor trainable."""
        shapes = actor_shapes(self.policy)
        return self._trainable("actor", self.policy.actor_flat, shapes, target=target)

    def _critics(self, generator: torch.Generator, inputs: int, outputs: int, members: int) -> Trainable:
        """Creates an ensemble of critics with target networks."""
        shapes = self._network_factory.shapes("critic", outputs, extra=inputs - self._inputs, members=members)
        flat = torch.zeros(element_count(shapes), device=self._device)
        critics = self._trainable("critic", flat, shapes, target=True)
        critics.network.initialize(generator, CRITIC_OUTPUT_GAIN)
        critics.update_target(1.0)
        return critics

    def _trainable(self, name: str, flat: Tensor, shapes: Mapping[str, tuple[int, ...]], *, target: bool) -> Trainable:
        settings = self.hyperparameters
        return Trainable(
            name,
            flat,
            shapes,
            self._network_factory.make_feedforward,
            learning_rate=settings.learning_rate,
            epsilon=settings.adam_epsilon,
            maximum_norm=settings.maximum_gradient_norm,
            target=target,
        )

    # --- the update -------------------------------------------------------------------------------------------

    def update(self, experience: ReplayBuffer) -> dict[str, float]:
        """Makes the gradient steps that the newest segment allows; see Algorithm.update.

        Returns:
            Metrics; empty if no gradient step was due.
        """
        tokens = float(self._counts["tokens"])
        # By received steps, not READY ones: a full buffer has one segment fewer READY while one is granted.
        if self._is_warm(experience):
            tokens += experience.segment_steps * self.hyperparameters.updates_per_step
        owed = int(tokens + ROUNDING)
        means = self._train_or_undo(experience, owed) if owed else {}
        self._counts["tokens"].fill_(tokens - owed)
        self._counts["environment_steps"] += experience.segment_steps
        self._update_statistics(experience)
        self.update_number += 1
        self._apply_schedules()
        return means

    def _train_or_undo(self, experience: ReplayBuffer, owed: int) -> dict[str, float]:
        """Makes gradient steps, or none if one fails; returns the means of their metrics."""
        with restored_on_error([*self._live_tensors().values(), *self._counts.values()]):
            metrics = self._train(experience, owed)
            if self._reduce:
                self._reduce.finish()
            if not metrics.isfinite().all():  # once per update, because this waits for the device
                raise non_finite_error(self.METRICS, metrics, self.update_number)
            return dict(zip(self.METRICS, metrics.mean(0).tolist(), strict=True))

    @property
    def environment_steps(self) -> int:
        """Environment steps trained with over all training of the agent, over all environments of this learner."""
        return int(self._counts["environment_steps"])

    @property
    def gradient_steps(self) -> int:
        """Gradient steps over all training of the agent."""
        return int(self._counts["gradient_steps"])

    def _is_warm(self, replay: ReplayBuffer) -> bool:
        """Whether the warm-up is complete, on all learners if they share gradients.

        Their token buckets are therefore always equally full, and all make the same number of gradient steps.
        """
        warm = bool(replay.steps >= self.hyperparameters.warmup_steps)
        if self._reduce is None:
            return warm
        share = torch.tensor(float(warm), device=self._device)
        self._reduce(share)
        return float(share) > WARM_SHARE

    def _train(self, replay: ReplayBuffer, updates: int) -> Tensor:
        """Makes gradient steps; returns METRICS of each: [updates, metrics]."""
        settings = self.hyperparameters
        generator = derive_generator(self._device, self._seed, "update", self.update_number)
        noise = self._noise(updates, generator)
        for optimizer in self._optimizers():
            optimizer.apply_rate()
        progress = self.environment_steps / settings.priority_annealing_steps
        beta, metrics = linear_schedule(settings.priority_correction, 1.0, progress), []
        if self._captured:
            return self._captured.train(replay, noise, beta, generator, lambda: self._prepare_step(generator))
        arguments = (settings.batch_size, settings.n_step, settings.discount, generator)
        for batch, row in zip(replay.sample_many(updates, *arguments, beta=beta), noise, strict=True):
            self._prepare_step(generator)
            values, errors = self._learn(*batch, row)
            if settings.prioritized:
                replay.update_priorities(batch.index, errors)
            metrics.append(values)
        return torch.stack(metrics)

    def _prepare_step(self, generator: torch.Generator) -> tuple[DueUpdates, bool]:
        """Draws what the next step needs, and counts it; returns what it depends on besides tensors."""
        self._draw(generator)
        self._due = DueUpdates(
            actor=self._is_actor_due(), targets=(self.gradient_steps + 1) % self.hyperparameters.target_period == 0
        )
        self._counts["gradient_steps"] += 1
        return self._due, self._reduce is not None

    def _learn(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Normalizes a batch as it was stored, makes one gradient step, and updates the target networks if due.

        Args:
            tensors: The fields of the batch, and the noise.

        Returns:
            As `_gradient_step`.
        """
        *fields, noise = tensors
        result = self._gradient_step(self._normalized(self._batch_type._make(fields)), noise)
        if self._due.targets:
            for trainable in self._trained.values():
                trainable.update_target(self.hyperparameters.target_rate)
        return result

    def _normalized(self, batch: Any) -> Any:
        """Returns a batch with the observations as networks receive them."""
        normalize = self.policy.normalize
        return batch._replace(
            observation=normalize(batch.observation), next_observation=normalize(batch.next_observation)
        )

    def _update_statistics(self, replay: ReplayBuffer) -> None:
        """Adds the observations of the newest segment to the policy's statistics."""
        if self.policy.normalizes:
            self._observations.add(RunningMoments.of(replay.newest_observations().flatten(1)))
            self._refresh_normalizer()

    def _refresh_normalizer(self) -> None:
        if self.policy.normalizes:
            seen = self._observations.total
            self.policy.set_statistics(seen.mean, seen.variance)

    # --- state ------------------------------------------------------------------------------------------------

    def _live_tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that a gradient step changes."""
        return {name: tensor for trained in self._trained.values() for name, tensor in trained.tensors().items()}

    def fusible(self) -> Fusible:
        """See Algorithm.fusible."""
        live = self._live_tensors()
        return Fusible(
            parameters={name: tensor for name, tensor in live.items() if name.endswith((".flat", ".log"))},
            targets={name: tensor for name, tensor in live.items() if name.endswith(".target") and tensor.numel()},
            moments={name: tensor for name, tensor in live.items() if name.endswith(MOMENTS)},
            counts={name: tensor for name, tensor in live.items() if name.endswith(".step")} | self._counts,
            statistics={"observations": self._observations},
        )

    def capture(self, record: Record | None = None) -> str:
        """See agentpod.algorithms.base.Capturable."""
        self._captured = SampledSteps(self.hyperparameters, self._learn, self._changed_tensors, record)
        return ""

    def _changed_tensors(self) -> list[Tensor]:
        """Returns the tensors that a gradient step changes, gradients included."""
        return [*self._live_tensors().values(), *(optimizer.gradient for optimizer in self._optimizers())]

    def share_gradients(self, reduce: Reduce) -> None:
        """See Algorithm.share_gradients."""
        self._reduce = reduce
        for optimizer in self._optimizers():
            optimizer.reduce = reduce

    def _optimizers(self) -> list[FlatAdam]:
        """Returns all optimizers."""
        return [trained.optimizer for trained in self._trained.values()]

    def refresh(self) -> None:
        """See Algorithm.refresh."""
        self._refresh_normalizer()
        self._apply_schedules()

    def begin_episodes(self) -> None:
        """See Algorithm.begin_episodes: there is no state that spans an episode."""

    def state_dict(self) -> dict[str, Tensor]:
        """Returns networks, targets, optimizers, statistics and counters; see Algorithm.state_dict."""
        return {
            **{name: tensor.clone() for name, tensor in self._live_tensors().items()},
            **{name: tensor.clone() for name, tensor in self._counts.items()},
            **self._observations.state_dict("observations"),
            "update_number": torch.tensor(self.update_number),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See Algorithm.load_state_dict; the policy is loaded separately, by `policy.load`."""
        load_tensors(self._live_tensors() | self._counts, self.state_dict(), state)
        self._observations.load_state_dict(state, "observations")
        self.update_number = int(state["update_number"])
        self._apply_schedules()


def actor_shapes(policy: Policy) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of an actor's tensors."""
    return {name: tuple(view.shape) for name, view in policy.tensors().items() if name.startswith("actor.")}
