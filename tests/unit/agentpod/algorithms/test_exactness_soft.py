"""Tests soft actor-critic, continuous and discrete: each gradient step against the losses of the papers.

The references in references.py are differentiated automatically in float64.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import references
import torch
from exactness import (
    ACTIVATIONS,
    BATCH,
    Descent,
    assert_gradient,
    descend,
    doubled,
    random_batch,
    random_noise,
    scrambled,
)
from exactness import one_thread as one_thread
from references import LOG_STD_RANGE, expected_log_prob, layers_of, perceptron, squashed_sample, temperature_loss
from torch import Tensor

from agentpod.algorithms.off_policy import DueUpdates

SEEDS = range(3)
ALPHA = 0.3
KINDS = {"sac": "continuous", "sac-discrete": "discrete"}
# Number of critics, their reduction, and the size of the subset for targets: 0 = all.
ENSEMBLES = [
    (critics, reduction, subset)
    for critics, reduction, subset in itertools.product((1, 2, 5), ("min", "mean"), (0, 1, 2))
    if subset <= critics
]
CASES = [("tanh", *ensemble) for ensemble in ENSEMBLES]
CASES += [(activation, *ensemble) for activation in ("relu", "elu") for ensemble in ((2, "min", 0), (5, "mean", 2))]
assert {case[0] for case in CASES} == set(ACTIVATIONS)


def soft(name: str, seed: int, **hyperparameters: object) -> Any:
    settings: dict[str, object] = {
        "initial_temperature": ALPHA,
        "batch_size": BATCH,
        "activation": "tanh",
    } | hyperparameters
    algorithm = scrambled(name, KINDS[name], seed, **settings)
    if name == "sac":
        # Some log standard deviations are clamped.
        algorithm._trained["actor"].network.biases[-1][2:] += 1.0
    return algorithm


def log_probability(
    name: str, tensors: Mapping[str, Tensor], observation: Tensor, noise: Tensor, activation: str
) -> Tensor:
    outputs = perceptron(layers_of(tensors, "actor"), observation, activation)
    return expected_log_prob(outputs) if name == "sac-discrete" else squashed_sample(outputs, noise[:BATCH])[1]


def critic_loss(
    name: str, step: Descent, batch: references.Batch, noise: Tensor, members: tuple[int, ...], **settings: Any
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Returns the loss and the errors for a target from these critics, and the tensors to differentiate by."""
    leaves = step.leaves("critic")
    online = {**step.before, **leaves}
    target = {key: tensor[list(members)] for key, tensor in step.target.items() if key.startswith("critic")}
    if name == "sac":
        return *references.sac_critic_loss(online, target, batch, noise=noise[BATCH:], **settings), leaves
    return *references.discrete_sac_critic_loss(online, target, batch, **settings), leaves


def actor_loss(
    name: str, step: Descent, batch: references.Batch, noise: Tensor, **settings: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Uses the critics after their step."""
    leaves = step.leaves("actor")
    networks = {**step.after, **leaves}
    if name == "sac":
        return references.sac_actor_loss(networks, batch.observation, noise=noise[:BATCH], **settings), leaves
    return references.discrete_sac_actor_loss(networks, batch.observation, **settings), leaves


def mean_value(name: str, step: Descent, batch: references.Batch, activation: str) -> Tensor:
    if name == "sac":
        return references.critic_values(step.before, batch.observation, batch.action, activation).mean()
    return references.ensemble_outputs(step.before, batch.observation, activation).mean()


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("activation", "critics", "reduction", "subset"), CASES)
def test_a_sac_step_follows_the_losses_of_the_papers(
    name: str, activation: str, critics: int, reduction: str, subset: int
) -> None:
    settings: dict[str, Any] = {"activation": activation, "alpha": ALPHA}
    for seed in SEEDS:
        algorithm = soft(
            name, seed, activation=activation, critics=critics, critic_reduction=reduction, critic_subset=subset
        )
        batch, noise = random_batch(KINDS[name], seed), random_noise(algorithm, seed)
        step, exact, noise = descend(algorithm, batch, noise), doubled(batch), noise.double()

        # The algorithm draws a subset; the errors show which.
        target_reduction = "min" if subset else reduction
        candidates = [
            critic_loss(name, step, exact, noise, members, reduce=target_reduction, **settings)
            for members in itertools.combinations(range(critics), subset or critics)
        ]
        found = step.errors.double()
        loss, errors, leaves = min(
            candidates, key=lambda each: float((each[1].detach().abs().mean(0) - found).abs().max())
        )
        torch.testing.assert_close(found, errors.abs().mean(0).detach(), rtol=1e-4, atol=1e-5)
        norm = assert_gradient(step, loss, leaves)
        assert step.metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert step.metrics["critic_gradient_norm"] == pytest.approx(norm, rel=1e-4)
        value = mean_value(name, step, exact, activation)
        assert step.metrics["mean_value"] == pytest.approx(value.item(), rel=1e-4, abs=1e-6)

        loss, leaves = actor_loss(name, step, exact, noise, reduce=reduction, **settings)
        norm = assert_gradient(step, loss, leaves)
        assert step.metrics["policy_loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
        assert step.metrics["actor_gradient_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("name", "scale"), [("sac", 1.0), ("sac", 0.3), ("sac-discrete", 0.5), ("sac-discrete", 0.98)])
def test_a_temperature_step_follows_the_loss_of_the_paper(name: str, scale: float, activation: str) -> None:
    # Minus the number of action dimensions; the logarithm of the number of choices.
    target_entropy = scale * (-2.0 if name == "sac" else math.log(3.0))
    for seed in SEEDS:
        algorithm = soft(name, seed, activation=activation, target_entropy_scale=scale)
        batch, noise = random_batch(KINDS[name], seed), random_noise(algorithm, seed)
        before = float(algorithm.state_dict()["temperature.log"])
        step = descend(algorithm, batch, noise)
        log_prob = log_probability(name, step.before, doubled(batch).observation, noise.double(), activation)
        log_alpha = torch.tensor(before, dtype=torch.float64, requires_grad=True)
        loss = temperature_loss(log_alpha, log_prob, target_entropy)
        (gradient,) = torch.autograd.grad(loss, log_alpha)
        written = algorithm._temperature.optimizer.gradient
        assert written.item() == pytest.approx(gradient.item(), rel=1e-4, abs=1e-6)
        assert step.metrics["temperature"] == pytest.approx(ALPHA)
        said = step.metrics["log_prob"] if name == "sac" else -step.metrics["entropy"]
        assert said == pytest.approx(log_prob.mean().item(), rel=1e-4, abs=1e-6)
        # The first step of Adam has the size of the learning rate, against the gradient.
        after = float(algorithm.state_dict()["temperature.log"])
        assert after - before == pytest.approx(-math.copysign(0.05, gradient.item()), rel=1e-3)
        again = descend(algorithm, batch, noise)
        assert again.metrics["temperature"] == pytest.approx(math.exp(after))


@pytest.mark.parametrize("name", KINDS)
def test_a_fixed_temperature_is_constant(name: str) -> None:
    algorithm = soft(name, 0, automatic_temperature=False)
    for _ in range(2):
        step = descend(algorithm, random_batch(KINDS[name], 0), random_noise(algorithm, 0))
        assert step.metrics["temperature"] == pytest.approx(ALPHA)
    assert algorithm.state_dict()["temperature.optimizer.step"] == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_child_with_a_fixed_temperature_has_its_own_and_not_that_of_its_parent(name: str) -> None:
    parent = soft(name, 0)
    descend(parent, random_batch(KINDS[name], 0), random_noise(parent, 0))
    child = soft(name, 1, automatic_temperature=False, initial_temperature=0.05)
    child.load_state_dict(parent.state_dict())
    assert float(child._temperature.value()) == pytest.approx(0.05)
    # As crossover does: the average with a sibling is written into the state.
    child.fusible().parameters["temperature.log"].copy_(parent.state_dict()["temperature.log"])
    child.refresh()
    assert float(child._temperature.value()) == pytest.approx(0.05)


@pytest.mark.parametrize("name", KINDS)
def test_a_child_with_an_automatic_temperature_continues_that_of_its_parent(name: str) -> None:
    parent = soft(name, 0)
    descend(parent, random_batch(KINDS[name], 0), random_noise(parent, 0))
    child = soft(name, 1, initial_temperature=0.05)
    child.load_state_dict(parent.state_dict())
    child.refresh()
    assert torch.equal(child._temperature.value(), parent._temperature.value())


@pytest.mark.parametrize("name", KINDS)
def test_critics_learn_the_same_in_a_step_without_the_actor(name: str) -> None:
    found = []
    for actor in (True, False):
        algorithm = soft(name, 0, policy_delay=2)
        before = algorithm.policy.flat.clone(), algorithm._temperature.value()
        algorithm._due = DueUpdates(actor=actor, targets=True)
        step = descend(algorithm, random_batch(KINDS[name], 0), random_noise(algorithm, 0))
        found.append(step)
        assert torch.equal(before[0], algorithm.policy.flat) != actor
        assert torch.equal(before[1], algorithm._temperature.value()) != actor
    for key, tensor in found[0].after.items():
        if key.startswith("critic"):
            torch.testing.assert_close(found[1].after[key], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", KINDS)
def test_subsets_of_critics_are_drawn_uniformly(name: str) -> None:
    algorithm = soft(name, 0, critics=4, critic_subset=2)
    values, generator = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.Generator().manual_seed(0)
    drawn = torch.empty(1200, 2)
    for row in drawn:
        algorithm._draw(generator)
        row.copy_(values[algorithm._members])
    pairs = drawn.sum(1).unique(return_counts=True)
    assert pairs[0].tolist() == [3.0, 5.0, 6.0, 9.0, 10.0, 12.0]
    # 200 of each are expected, with a standard deviation of 13.
    assert all(140 < count < 260 for count in pairs[1].tolist())


def test_the_critics_before_and_after_their_step_give_different_actor_losses() -> None:
    for name in KINDS:
        step = descend(soft(name, 0), random_batch(KINDS[name], 0), random_noise(soft(name, 0), 0))
        moved = [float((step.after[key] - step.before[key]).abs().min()) for key in step.before]
        assert min(moved) > 0.04


def test_the_test_data_has_clamped_and_unclamped_deviations() -> None:
    algorithm, batch = soft("sac", 0), random_batch("continuous", 0)
    log_std = algorithm._trained["actor"].network.forward(batch.observation)[:, 2:]
    assert 0 < int((log_std > LOG_STD_RANGE[1]).sum()) < log_std.numel() / 2
