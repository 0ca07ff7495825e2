"""Implements the base of on-policy algorithms: values, advantages, statistics and state.

A subclass implements `_train`, which minimizes its loss over the prepared batch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.base import (
    Settings,
    load_tensors,
    non_finite_error,
    parse_hyperparameters,
    restored_on_error,
)
from agentpod.algorithms.flat_adam import MOMENTS, FlatAdam, Reduce
from agentpod.algorithms.fusible import Fusible
from agentpod.capture.graph_replay import GraphReplay, Record
from agentpod.experience.rollout import Rollout
from agentpod.experience.rollout_batch import RecurrentStates, RolloutBatch
from agentpod.models.actor_critic import ActorCritic
from agentpod.models.gru import RecurrentNetwork
from agentpod.models.mlp import Sequences
from agentpod.models.normalizer import RewardScale, RunningMoments, SharedMoments
from agentpod.models.policy import NetworkSpec
from agentpod.returns import generalized_advantages
from agentpod.seeding import derive_generator
from simulators.base import Space

ANY_SHAPE = ("return_carry", "critic_state", "left")
"""Tensors of the state whose shape depends on the number of lanes."""
LARGEST_REWARD = 10.0
"""Bound of the absolute value of normalized rewards, as in the wrapper `normalize_rewards`."""
STEPS = "environment_steps"
"""Name of the counter in the state."""


@dataclass(frozen=True)
class OnPolicySettings(Settings):
    """Hyperparameters of all on-policy algorithms."""

    discount: float = 0.99
    """Gamma: discount per step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation: 0 relies on the critic alone, 1 on the rewards alone."""
    entropy_coefficient: float = 0.001
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the squared value error."""
    maximum_gradient_norm: float = 0.5
    """Gradients with a larger norm are scaled down to it; 0 = no clipping."""
    normalize_rewards: bool = True
    """Whether rewards are divided by the running standard deviation of the discounted return, and clipped to
    LARGEST_REWARD."""
    normalize_advantages: bool = True
    """Whether advantages are standardized within each minibatch."""
    adam_epsilon: float = 1e-5
    """Added to the denominator of Adam."""
    initial_log_std: float = 0.0
    """Initial log standard deviation of continuous actions, in units of half the action range."""
    recurrent_size: int = 0
    """Size of the recurrent state of the actor, and of that of the critic: a GRU between hidden layers and output; 0 =
    none."""

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy."""
        return replace(super().network, recurrent_size=self.recurrent_size)


def standardize(advantage: Tensor) -> Tensor:
    """Scales advantages [B] to mean 0 and standard deviation 1."""
    deviation, mean = torch.std_mean(advantage, correction=0)
    return (advantage - mean) / (deviation + 1e-8)


Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Computes an objective, or an error, for each of B numbers, and its derivative: [B] -> ([B], [B])."""


def backpropagate_policy(
    batch: RolloutBatch, networks: ActorCritic, objective: Objective, entropy_coefficient: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes the actor's gradient of -mean(objective(log_prob)) - entropy_coefficient mean(H).

    Args:
        batch: B steps.
        networks: The trained networks; the gradient of the actor is overwritten.
        objective: Of the log-probabilities under the present policy.
        entropy_coefficient: Weight of the mean entropy H.

    Returns:
        Log-probabilities [B], mean objective [], mean entropy [].
    """
    actor = networks.policy.actor.unrolled(batch.actor_sequences)
    trace = actor.trace(batch.observation)
    mask = networks.policy.mask
    outputs = mask.apply(trace[-1], batch.observation) if mask else trace[-1]
    log_prob, entropy, backward = networks.distribution.evaluate(outputs, batch.action)
    value, gradient = objective(log_prob)
    outputs_gradient, log_std_gradient = backward(gradient * (-1.0 / len(gradient)), -entropy_coefficient)
    if mask:
        outputs_gradient = mask.backward(outputs_gradient, batch.observation)
    actor.backward(outputs_gradient, trace, networks.actor_gradient)
    if log_std_gradient is not None:
        networks.gradients["log_std"].copy_(log_std_gradient)
    return log_prob, value.mean(), entropy


def backpropagate_value(batch: RolloutBatch, networks: ActorCritic, error: Objective, coefficient: float) -> Tensor:
    """Writes the critic's gradient of coefficient mean(error(V)); returns mean(error(V)): []."""
    critic = networks.critic.unrolled(batch.critic_sequences)
    trace = critic.trace(batch.seen_by_critic)
    value, gradient = error(trace[-1].squeeze(1))
    gradient = (gradient * (coefficient / len(gradient))).unsqueeze(1)
    critic.backward(gradient, trace, networks.critic_gradient)
    return value.mean()


class OnPolicy:
    """Base class of on-policy algorithms; see agentpod.algorithms.base.Algorithm for the loop and attributes.

    Attributes:
        METRICS: Names of the metrics of a minibatch, in the order in which `_train` returns them.
    """

    settings_type: ClassVar[type[OnPolicySettings]]
    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "multi_binary"})
    METRICS: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hyperparameters: Mapping[str, object],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Creates new networks; see Algorithm. The seed also determines the order of minibatches."""
        self.hyperparameters: Any = parse_hyperparameters(self.settings_type, hyperparameters)
        settings = self.hyperparameters
        self.network, self.memory, self.update_number = settings.network, settings.memory, 0
        self._seed, self._device, self._agents = seed, torch.device(device), observation_space.lanes
        self._build(observation_space, action_space)
        # With separate parameters each agent has its own statistics.
        agents = (self.policy.agents,) if self.policy.agents else ()
        self._observations = SharedMoments((*agents, math.prod(observation_space.shape)), device)
        self._returns = SharedMoments((), device)
        self._return_carry = torch.zeros(0, dtype=torch.float64, device=device)
        # A tensor, because a learner that joins others takes it from the leader.
        self._environment_steps = torch.zeros((), dtype=torch.float64)
        self._critic_state = torch.zeros(0, settings.recurrent_size, device=device)
        self._replay: GraphReplay[Tensor] | None = None

    def _build(self, observation_space: Space, action_space: Space) -> None:
        """Creates networks, policy and optimizer."""
        settings = self.hyperparameters
        critic_space = self._critic_space(observation_space)
        self._networks: Any = ActorCritic(observation_space, action_space, self.network, self._device, critic_space)
        self._networks.initialize(derive_generator(self._device, self._seed, "initialize"), settings.initial_log_std)
        self.policy = self._networks.policy
        self._optimizer: Any = FlatAdam(
            self._networks.parameters,
            self._networks.gradient,
            learning_rate=settings.learning_rate,
            epsilon=settings.adam_epsilon,
            maximum_norm=settings.maximum_gradient_norm,
        )

    def _critic_space(self, observation_space: Space) -> Space:
        """Returns the space of what the critic receives; see `_critic_inputs`."""
        return observation_space

    def update(self, experience: Rollout) -> dict[str, float]:
        """Minimizes the loss over one rollout; see Algorithm.update.

        Observations are normalized by the statistics of the policy being trained, rewards by statistics that include
        this rollout; normalized rewards are clipped, because the first ones after many steps without any would be very
        large. The observations of the rollout are added to the statistics after training, so that workers
        receive them with the next policy version.
        """
        done = experience["terminated"] | experience["truncated"]
        scale = RewardScale(self._returns.total, self._return_carry)
        if self.hyperparameters.normalize_rewards:
            scale = scale.advance(experience["reward"], done, self.hyperparameters.discount, self._present())
        reward = experience["reward"] / scale.deviation
        if self.hyperparameters.normalize_rewards:
            reward.clamp_(-LARGEST_REWARD, LARGEST_REWARD)
        batch = self._prepare(experience, reward)
        steps, taken = experience["reward"].numel() // self._agents, self.environment_steps
        if taken < 0:
            taken *= -steps  # See load_state_dict.
        if self.hyperparameters.changes_learning_rate:
            self._optimizer.rate.fill_(self.hyperparameters.learning_rate_after(taken))
        self._optimizer.apply_rate()
        with restored_on_error(self._trained_tensors()):
            metrics = self._train(batch)
            if self._optimizer.reduce:
                self._optimizer.reduce.finish()
            if not metrics.isfinite().all():
                # Checked once per update, because every check synchronizes with the device.
                raise non_finite_error(self.METRICS, metrics, self.update_number)
        if scale.fresh:
            self._returns.add(scale.fresh)
        self._return_carry = scale.carry
        if batch.recurrent_states is not None:
            self._critic_state = batch.recurrent_states.next_critic
        self._update_statistics(experience["observation"][:-1])
        self.update_number += 1
        self._environment_steps.fill_(taken + steps)
        means = dict(zip(self.METRICS, metrics.mean(0).tolist(), strict=True))
        return means | batch.diagnostics()

    @property
    def environment_steps(self) -> int:
        """Environment steps trained on over all training of the agent, over all environments of this learner."""
        return int(self._environment_steps)

    def _train(self, batch: RolloutBatch) -> Tensor:
        """Minimizes the loss; returns METRICS of every minibatch: [minibatches, metrics]."""
        raise NotImplementedError

    def _gradient_step(self, minibatch: RolloutBatch) -> Tensor:
        """Makes one optimizer step; returns METRICS [metrics]. See the invariants of agentpod.capture.graph_replay."""
        raise NotImplementedError

    def _step(self, minibatch: RolloutBatch) -> Tensor:
        """Makes one optimizer step, from a graph if steps are captured; returns METRICS [metrics]."""
        if self._replay is None:
            return self._gradient_step(minibatch)
        return self._replay(minibatch.tensors(), self._optimizer.reduce is not None).clone()

    def _prepare(self, rollout: Rollout, reward: Tensor) -> RolloutBatch:
        """Computes values, advantages and targets with the present critic, flattened over time and lanes."""
        settings, (horizon, count) = self.hyperparameters, reward.shape
        observation = self.policy.normalize(rollout["observation"].flatten(0, 1))
        inputs = self._critic_inputs(observation)
        value, next_value, recurrent_states = self._estimate_values(rollout, inputs)
        terminated, truncated = rollout["terminated"], rollout["truncated"]
        advantage = generalized_advantages(
            reward, value, next_value, terminated, truncated, settings.discount, settings.gae_lambda
        )
        fields = (rollout["action"], rollout["log_prob"], advantage, value, advantage + value)
        flat, own = [field.flatten(0, 1) for field in fields], inputs[: horizon * count]
        seen = None if inputs is observation else own
        return RolloutBatch._make((observation[: horizon * count], *flat, recurrent_states, seen))

    def _present(self) -> Tensor | None:
        """Returns in which steps of the rollout [T, N] an agent was in its environment; None: in all."""
        return None

    def _critic_inputs(self, observation: Tensor) -> Tensor:
        """Returns what the critic receives [B, S], of observations [B, D] as the policy normalizes them.

        The rows of a step are those of all lanes, in their order.
        """
        return observation

    def _final_critic_inputs(self, rollout: Rollout) -> Tensor:
        """Returns what the critic receives after the last step of each truncated episode, by time, then by lane."""
        return self.policy.normalize(rollout["final_observation"][rollout["truncated"]])

    def _estimate_values(self, rollout: Rollout, observation: Tensor) -> tuple[Tensor, Tensor, RecurrentStates | None]:
        """Computes V(s_t) and V(s_{t+1}), the latter for the final observation where truncated: [T, N] each.

        Args:
            rollout: T steps of N lanes.
            observation: [(T + 1) N, S], all rows of the rollout as the critic receives them.

        Returns:
            V(s_t), V(s_{t+1}), and the recurrent states of a recurrent critic.
        """
        critic, truncated, recurrent_states = self._networks.critic, rollout["truncated"], None
        horizon, count = truncated.shape
        states = observation.new_empty(horizon + 1, count, 0)
        if isinstance(critic, RecurrentNetwork):
            recurrent_states, outputs, states = self._unroll_critic(critic, rollout, observation)
        else:
            outputs = critic.forward(observation)
        values = outputs.view(horizon + 1, count)
        next_value = values[1:].clone()
        if truncated.any():
            # A recurrent critic continues from its state in the truncated episode.
            final = self._final_critic_inputs(rollout)
            recurrent = isinstance(critic, RecurrentNetwork)
            following = critic.advance(final, states[:-1][truncated])[0] if recurrent else critic.forward(final)
            next_value[truncated] = following.squeeze(1)
        return values[:-1], next_value, recurrent_states

    def _unroll_critic(
        self, critic: RecurrentNetwork, rollout: Rollout, observation: Tensor
    ) -> tuple[RecurrentStates, Tensor, Tensor]:
        """Unrolls a recurrent critic over a rollout, from its state after the previous rollout.

        If the number of lanes changed, episodes cannot be matched to lanes, so the state starts from zero.

        Returns:
            The recurrent states; the critic's outputs [(T + 1) N, 1]; its states after each row [T + 1, N, H].
        """
        done = rollout["terminated"] | rollout["truncated"]
        begins = torch.cat((torch.zeros_like(done[:1]), done))
        keep = begins.logical_not().float().unsqueeze(-1)
        state, lanes = self._critic_state, done.shape[1]
        state = state if len(state) == lanes else state.new_zeros(lanes, critic.state_size)
        outputs, states = critic.unroll(observation, Sequences(keep, state))
        recurrent_states = RecurrentStates(keep[:-1], rollout["state"][0], state, states[-2] * keep[-1])
        return recurrent_states, outputs, states

    def _update_statistics(self, observation: Tensor) -> None:
        """Adds observations [T, N, *shape] to the policy's statistics."""
        if self.policy.normalizes:
            samples = observation.flatten(0, 1).flatten(1)
            self._observations.add(RunningMoments.of(samples))
            self._refresh_normalizer()

    def _refresh_normalizer(self) -> None:
        if self.policy.normalizes:
            seen = self._observations.total
            self.policy.set_statistics(seen.mean, seen.variance)

    def _trained_tensors(self) -> list[Tensor]:
        """Returns the tensors that a minibatch changes."""
        return [self._optimizer.parameters, *self._optimizer.tensors().values(), self._optimizer.rate]

    def _changed_tensors(self) -> list[Tensor]:
        """Returns the tensors that a gradient step changes, gradients included."""
        return [*self._trained_tensors(), self._optimizer.gradient]

    def _state_tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that are restored in place; statistics and counters are replaced instead."""
        optimizer = {f"optimizer.{name}": tensor for name, tensor in self._optimizer.tensors().items()}
        return {**self._networks.critic_tensors, **optimizer}

    def fusible(self) -> Fusible:
        """See Algorithm.fusible."""
        optimizer = self._optimizer.tensors()
        return Fusible(
            parameters={"parameters": self._networks.parameters},
            moments={name: optimizer[name] for name in MOMENTS},
            counts={"optimizer.step": optimizer["step"], STEPS: self._environment_steps},
            statistics={"observations": self._observations, "returns": self._returns},
        )

    def capture(self, record: Record | None = None) -> str:
        """See agentpod.algorithms.base.Capturable."""

        def step(*tensors: Tensor) -> Tensor:
            return self._gradient_step(RolloutBatch.of(*tensors))

        self._replay = GraphReplay(step, self._changed_tensors, "a gradient step", record)
        return ""

    def share_gradients(self, reduce: Reduce) -> None:
        """See Algorithm.share_gradients."""
        self._optimizer.reduce = reduce

    def refresh(self) -> None:
        """See Algorithm.refresh."""
        self._refresh_normalizer()

    def begin_episodes(self) -> None:
        """See Algorithm.begin_episodes: running returns and the critic's recurrent state restart from zero."""
        self._return_carry = self._return_carry.new_zeros(0)
        self._critic_state = self._critic_state.new_zeros(0, self.hyperparameters.recurrent_size)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns critic, optimizer, statistics and counters; see Algorithm.state_dict."""
        return {
            **{name: tensor.clone() for name, tensor in self._state_tensors().items()},
            **self._observations.state_dict("observations"),
            **self._returns.state_dict("returns"),
            "return_carry": self._return_carry.clone(),
            **({"critic_state": self._critic_state.clone()} if self.hyperparameters.recurrent_size else {}),
            "update_number": torch.tensor(self.update_number),
            STEPS: self._environment_steps.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See Algorithm.load_state_dict; the policy is loaded separately, by `policy.load`.

        Release 0.1.0 did not save the number of environment steps. It is then minus the number of updates, until the
        next update shows how many steps a rollout has.
        """
        wanted = {name: tensor for name, tensor in self.state_dict().items() if name in state or name != STEPS}
        load_tensors(self._state_tensors(), wanted, state, any_shape=ANY_SHAPE)
        self._observations.load_state_dict(state, "observations")
        self._returns.load_state_dict(state, "returns")
        self._return_carry = state["return_carry"].to(self._device, copy=True)
        if "critic_state" in state:
            self._critic_state = state["critic_state"].to(self._device, copy=True)
        self.update_number = int(state["update_number"])
        self._environment_steps.copy_(state.get(STEPS, torch.tensor(-self.update_number)))
