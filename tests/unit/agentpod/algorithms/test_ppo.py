"""Tests the loss of PPO and its gradient against the paper's equations, differentiated automatically in float64."""

import itertools
import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from agentpod.algorithms import Algorithm, make
from agentpod.algorithms.on_policy import standardize
from agentpod.algorithms.ppo import (
    PPOHyperparameters,
    clipped_surrogate,
    policy_gradient,
    squared_value_error,
    value_gradient,
)
from agentpod.experience.rollout import rollout_fields
from agentpod.experience.rollout_batch import RolloutBatch, explained_variance
from agentpod.models.actor_critic import ActorCritic
from agentpod.models.distributions import require_distribution
from agentpod.models.policy import NetworkSpec
from simulators.base import Space

OBSERVED = Space("continuous", (5,), torch.float32)
SPACES = {
    "continuous": Space("continuous", (3,), torch.float32),
    "discrete": Space("discrete", (), torch.int64, n=4),
}
BATCH = 37
ACTIVATE = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}


def random_networks(kind: str, activation: str, seed: int) -> ActorCritic:
    networks = ActorCritic(OBSERVED, SPACES[kind], NetworkSpec((8, 6), activation))
    networks.parameters.copy_(torch.randn(networks.parameters.shape, generator=torch.Generator().manual_seed(seed)))
    networks.parameters.mul_(0.4)
    return networks


def random_batch(kind: str, seed: int) -> RolloutBatch:
    generator = torch.Generator().manual_seed(100 + seed)
    observation = torch.randn(BATCH, 5, generator=generator)
    advantage, value, target, jitter = torch.randn(4, BATCH, generator=generator)
    if kind == "discrete":
        action = torch.randint(4, (BATCH,), generator=generator)
        return RolloutBatch(observation, action, -math.log(4) + 0.3 * jitter, advantage, value, target)
    action = torch.randn(BATCH, 3, generator=generator)
    return RolloutBatch(observation, action, -4.0 + jitter, advantage, value, target)


def mlp(tensors: Mapping[str, Tensor], name: str, inputs: Tensor, activation: str) -> Tensor:
    for layer in range(3):
        inputs = inputs @ tensors[f"{name}.{layer}.weight"].t() + tensors[f"{name}.{layer}.bias"]
        inputs = ACTIVATE[activation](inputs) if layer < 2 else inputs
    return inputs


def distribution(tensors: Mapping[str, Tensor], outputs: Tensor) -> Distribution:
    if "log_std" in tensors:
        return Independent(Normal(outputs, tensors["log_std"].exp().expand_as(outputs)), 1)
    return Categorical(logits=outputs)


def paper_loss(tensors: Mapping[str, Tensor], batch: RolloutBatch, settings: PPOHyperparameters) -> Tensor:
    """Computes equation 9 of the paper, including equation 7, one sample at a time."""
    policy = distribution(tensors, mlp(tensors, "actor", batch.observation, settings.activation))
    log_prob = policy.log_prob(batch.action)
    value = mlp(tensors, "critic", batch.observation, settings.activation)[:, 0]
    advantage = batch.advantage
    if settings.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(len(advantage)):
        ratio = (log_prob[i] - batch.log_prob[i]).exp()
        clipped_ratio = ratio.clamp(1 - settings.clip_range, 1 + settings.clip_range)
        surrogate = torch.minimum(ratio * advantage[i], clipped_ratio * advantage[i])
        error = (value[i] - batch.target[i]) ** 2
        if settings.value_clip_range > 0:
            low, high = batch.value[i] - settings.value_clip_range, batch.value[i] + settings.value_clip_range
            error = torch.maximum(error, (value[i].clamp(low, high) - batch.target[i]) ** 2)
        loss = loss - surrogate + settings.value_coefficient * error
    return loss / len(advantage) - settings.entropy_coefficient * policy.entropy().mean()


def doubled(batch: RolloutBatch) -> RolloutBatch:
    steps = (batch.observation, batch.action, batch.log_prob, batch.advantage, batch.value, batch.target)
    return RolloutBatch(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in steps))


CASES = list(itertools.product(SPACES, [0.0, 0.4], [True, False], ACTIVATE))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "value_clip_range", "normalize", "activation"), CASES)
def test_the_gradient_equals_that_of_the_paper(
    kind: str, value_clip_range: float, normalize: bool, activation: str
) -> None:
    settings = PPOHyperparameters(
        value_clip_range=value_clip_range,
        normalize_advantages=normalize,
        activation=activation,
        entropy_coefficient=0.05,
        value_coefficient=0.7,
    )
    for seed in range(3):
        networks, batch = random_networks(kind, activation, seed), random_batch(kind, seed)
        networks.gradient.fill_(math.nan)
        losses = (*policy_gradient(batch, networks, settings)[:2], value_gradient(batch, networks, settings))
        tensors = networks.policy.tensors() | networks.critic_tensors
        leaves = {
            name: tensor.double().requires_grad_() for name, tensor in tensors.items() if "observation" not in name
        }
        expected = paper_loss(leaves, doubled(batch), settings)
        loss = losses[0] - 0.05 * losses[1] + 0.7 * losses[2]
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-6)
        for name, leaf in zip(leaves, torch.autograd.grad(expected, list(leaves.values())), strict=True):
            torch.testing.assert_close(networks.gradients[name].double(), leaf, rtol=1e-4, atol=2e-6)


def seen(tensors: Mapping[str, Tensor], observation: Tensor) -> Tensor:
    deviation = (tensors["observation_variance"] + 1e-8).sqrt()
    return ((observation.double() - tensors["observation_mean"]) / deviation).clamp(-10, 10)


def expected_batch(tensors: Mapping[str, Tensor], rollout: Mapping[str, Tensor], deviation: float) -> RolloutBatch:
    """Computes advantages and targets by loops over lanes and steps, from rewards and values."""
    observation = seen(tensors, rollout["observation"])
    value = mlp(tensors, "critic", observation, "tanh")[..., 0].detach()
    final_value = mlp(tensors, "critic", seen(tensors, rollout["final_observation"]), "tanh")[..., 0].detach()
    advantage = torch.zeros_like(value[:-1])
    for t, lane in itertools.product(reversed(range(len(advantage))), range(advantage.shape[1])):
        terminated, truncated = bool(rollout["terminated"][t, lane]), bool(rollout["truncated"][t, lane])
        following = 0.0 if terminated else float((final_value[t] if truncated else value[t + 1])[lane])
        advantage[t, lane] = float(rollout["reward"][t, lane]) / deviation + 0.99 * following - value[t, lane]
        if not terminated and not truncated and t + 1 < len(advantage):
            advantage[t, lane] += 0.99 * 0.95 * advantage[t + 1, lane]
    fields = (
        observation[:-1],
        rollout["action"],
        rollout["log_prob"].double(),
        advantage,
        value[:-1],
        advantage + value[:-1],
    )
    return RolloutBatch(*(field.flatten(0, 1) for field in fields))


@pytest.mark.parametrize("kind", SPACES)
def test_a_whole_update_follows_the_paper_from_rewards_to_gradient(kind: str) -> None:
    settings = {"hidden_sizes": [8, 6], "horizon": 9, "epochs": 1, "minibatch_size": 36, "entropy_coefficient": 0.03}
    algorithm = make("ppo", OBSERVED, SPACES[kind], settings, seed=3)
    for k in range(2):
        rollout = random_rollout(algorithm, SPACES[kind], seed=k)
        state, policy = (
            algorithm.state_dict(),
            {name: tensor.clone() for name, tensor in algorithm.policy.tensors().items()},
        )
        metrics = algorithm.update(rollout)
    after = algorithm.state_dict()
    variance = float(after["returns.fresh.squared_deviation"] / after["returns.fresh.count"])
    tensors = {name: tensor.double().requires_grad_("observation" not in name) for name, tensor in policy.items()}
    tensors |= {name: tensor.double().requires_grad_() for name, tensor in state.items() if name.startswith("critic")}
    batch = expected_batch(tensors, rollout, math.sqrt(variance + 1e-8))
    loss = paper_loss(tensors, batch, PPOHyperparameters(entropy_coefficient=0.03))
    gradients = torch.autograd.grad(loss, [leaf for leaf in tensors.values() if leaf.requires_grad])
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    total_loss = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - 0.03 * metrics["entropy"]
    assert total_loss == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    residual = (batch.target - batch.value).var(correction=0) / batch.target.var(correction=0)
    assert metrics["explained_variance"] == pytest.approx(1 - float(residual), rel=1e-3, abs=1e-5)


def random_rollout(algorithm: Algorithm, action_space: Space, seed: int) -> dict[str, Tensor]:
    """Returns random steps of four lanes with the algorithm's own policy, with terminations and truncations."""
    generator = torch.Generator().manual_seed(seed)
    fields = rollout_fields(OBSERVED, action_space, algorithm.memory.horizon, 4)
    rollout = {name: torch.randn(field.shape, generator=generator) for name, field in fields.items()}
    rollout["terminated"] = rollout["terminated"] > 0.9
    rollout["truncated"] = (rollout["truncated"] > 0.9) & ~rollout["terminated"]
    rows = rollout["observation"][:-1]
    rollout["action"] = torch.stack(
        [algorithm.policy.act(row, algorithm.policy.noise((4,), generator)) for row in rows]
    )
    outputs = torch.stack([algorithm.policy.outputs(row) for row in rows])
    rollout["log_prob"] = require_distribution(algorithm.policy.head).log_prob(outputs, rollout["action"])
    assert rollout["terminated"].any()
    assert rollout["truncated"].any()
    return rollout


def test_the_test_data_has_clipped_and_unclipped_ratios() -> None:
    for kind in SPACES:
        terms = policy_gradient(random_batch(kind, 0), random_networks(kind, "tanh", 0), PPOHyperparameters())
        assert 0.2 < float(terms[3]) < 0.95


def test_the_gradient_vanishes_where_a_step_would_leave_the_trust_region() -> None:
    ratio = torch.tensor([1.3, 0.7, 1.3, 0.7, 1.1, 0.9, 1.0])
    advantage = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 2.0])
    objective, gradient = clipped_surrogate(ratio.log(), advantage, 0.2)
    torch.testing.assert_close(objective, torch.tensor([1.2, -0.8, -1.3, 0.7, 1.1, -0.9, 2.0]))
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0.0, -1.3, 0.7, 1.1, -0.9, 2.0]))


def test_an_overflowing_ratio_that_is_clipped_has_no_gradient() -> None:
    objective, gradient = clipped_surrogate(torch.tensor([200.0]), torch.tensor([1.0]), 0.2)
    assert objective.item() == pytest.approx(1.2)
    assert gradient.item() == 0.0


def test_a_batch_outside_the_trust_region_does_not_change_the_actor() -> None:
    networks, batch = random_networks("discrete", "tanh", 0), random_batch("discrete", 0)
    far = batch._replace(log_prob=torch.full((BATCH,), -20.0), advantage=batch.advantage.abs())
    policy_gradient(far, networks, PPOHyperparameters(normalize_advantages=False, entropy_coefficient=0.0))
    actor = [gradient for name, gradient in networks.gradients.items() if name.startswith("actor")]
    assert all(gradient.eq(0).all() for gradient in actor)


def test_a_value_outside_its_clip_range_has_no_gradient() -> None:
    old_value, target = torch.zeros(4), torch.tensor([2.0, 2.0, 2.0, -2.0])
    value = torch.tensor([0.5, 1.5, -1.5, 1.5])
    error, gradient = squared_value_error(value, old_value, target, 1.0)
    assert error.tolist() == [2.25, 1.0, 12.25, 12.25]
    assert gradient.tolist() == [-3.0, 0.0, -7.0, 7.0]


def test_inside_its_clip_range_a_value_keeps_its_exact_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    old_value, change, target = torch.randn(3, 10_000, generator=generator)
    value = old_value + 0.1 * change.clamp(-1, 1)
    plain, clipped = (squared_value_error(value, old_value, target, clip_range)[1] for clip_range in (0.0, 0.2))
    assert torch.equal(plain, clipped)


def test_shapes_are_not_broadcast_to_a_square() -> None:
    rows = torch.randn(BATCH)
    for term in (*clipped_surrogate(rows, rows, 0.2), *squared_value_error(rows, rows, rows, 0.2), standardize(rows)):
        assert term.shape == (BATCH,)
    for kind in SPACES:
        networks, batch = random_networks(kind, "tanh", 0), random_batch(kind, 0)
        terms = (
            *policy_gradient(batch, networks, PPOHyperparameters()),
            value_gradient(batch, networks, PPOHyperparameters()),
        )
        assert all(term.shape == () for term in terms)


def test_a_single_advantage_is_standardized_to_zero() -> None:
    assert standardize(torch.tensor([3.0])).tolist() == [0.0]


def test_every_step_is_used_once_per_epoch() -> None:
    rows = torch.arange(10.0)
    batch = RolloutBatch(rows.unsqueeze(1), rows, rows, rows, rows, rows)
    pieces = list(batch.minibatches(torch.randperm(10), minibatch_size=4))
    assert sorted(len(piece.value) for piece in pieces) == [3, 3, 4]
    assert sorted(torch.cat([piece.target for piece in pieces]).tolist()) == rows.tolist()
    for piece in pieces:
        assert all(torch.equal(field.flatten(), piece.value) for field in piece.tensors())


def test_explained_variance_is_one_for_perfect_values_and_zero_for_a_constant() -> None:
    target = torch.tensor([1.0, 2.0, 5.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(torch.full((3,), 7.0), target) == pytest.approx(0.0)
    assert math.isfinite(explained_variance(target, torch.ones(3)))
