"""Tests DQN and its variants, DDPG and TD3: each gradient step against the losses of the papers.

The references in references.py are differentiated automatically in float64.
"""

import itertools
import math

import pytest
import torch
from exactness import ACTIVATIONS, assert_gradient, descend, doubled, random_batch, random_noise, scrambled
from exactness import one_thread as one_thread
from references import action_values, critic_values, deterministic_actor_loss, deterministic_critic_loss, dqn_loss

SEEDS = range(3)
# Whether the online network selects the target's action, and whether the network is dueling.
VALUE_LEARNERS = {
    "dqn": (False, False),
    "double-dqn": (True, False),
    "dueling-dqn": (False, True),
    "d3qn": (True, True),
}


@pytest.mark.parametrize(
    ("name", "activation", "delta"), list(itertools.product(VALUE_LEARNERS, ACTIVATIONS, (0.0, 0.5)))
)
def test_a_dqn_step_follows_the_loss_of_the_papers(name: str, activation: str, delta: float) -> None:
    is_double, is_dueling = VALUE_LEARNERS[name]
    for seed in SEEDS:
        algorithm = scrambled(name, "discrete", seed, activation=activation, huber_delta=delta)
        batch = random_batch("discrete", seed)
        step = descend(algorithm, batch, random_noise(algorithm, seed))
        leaves = step.leaves("actor")
        loss, errors = dqn_loss(
            leaves,
            step.target,
            doubled(batch),
            activation=activation,
            is_double=is_double,
            is_dueling=is_dueling,
            delta=delta or math.inf,
            name="actor",
        )
        norm = assert_gradient(step, loss, leaves)
        assert step.metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert step.metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
        values = action_values(step.before, doubled(batch).observation, activation, "actor", is_dueling)
        assert step.metrics["mean_value"] == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-6)
        torch.testing.assert_close(step.errors.double(), errors.abs().detach(), rtol=1e-4, atol=1e-5)
        # The data must have errors on both sides of delta.
        assert 0 < int((errors.abs() > 0.5).sum()) < len(errors)


def test_the_test_data_distinguishes_double_targets() -> None:
    for seed in SEEDS:
        errors = [
            descend(scrambled(name, "discrete", seed), random_batch("discrete", seed), torch.empty(0)).errors
            for name in ("dqn", "double-dqn")
        ]
        assert int((errors[0] != errors[1]).sum()) > 0


NOISE = {"target_noise": 0.3, "target_noise_clip": 0.4, "policy_delay": 1}


@pytest.mark.parametrize(
    ("name", "activation", "critics"), list(itertools.product(("ddpg", "td3"), ACTIVATIONS, (1, 2, 5)))
)
def test_a_ddpg_or_td3_step_follows_the_losses_of_the_papers(name: str, activation: str, critics: int) -> None:
    smoothing = NOISE if name == "td3" else {}
    for seed in SEEDS:
        algorithm = scrambled(
            name, "continuous", seed, activation=activation, critics=critics, batch_size=19, **smoothing
        )
        batch, noise = random_batch("continuous", seed), random_noise(algorithm, seed)
        step, exact = descend(algorithm, batch, noise), doubled(batch)

        smooth = {"noise": noise.double(), "deviation": 0.3, "bound": 0.4} if smoothing else {}
        leaves = step.leaves("critic")
        loss, errors = deterministic_critic_loss(
            {**step.before, **leaves}, step.target, exact, activation=activation, **smooth
        )
        norm = assert_gradient(step, loss, leaves)
        assert step.metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert step.metrics["critic_gradient_norm"] == pytest.approx(norm, rel=1e-4)
        torch.testing.assert_close(step.errors.double(), errors.abs().mean(0).detach(), rtol=1e-4, atol=1e-5)
        values = critic_values(step.before, exact.observation, exact.action, activation)
        assert step.metrics["mean_value"] == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-6)

        # The actor follows the gradient of the first critic after its step.
        leaves = step.leaves("actor")
        loss = deterministic_actor_loss({**step.after, **leaves}, exact.observation, activation=activation)
        norm = assert_gradient(step, loss, leaves)
        assert step.metrics["policy_loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
        assert step.metrics["actor_gradient_norm"] == pytest.approx(norm, rel=1e-4)


def test_the_test_data_has_clipped_noise_and_clipped_actions() -> None:
    algorithm = scrambled("td3", "continuous", 0, batch_size=19, **NOISE)
    noise = 0.3 * random_noise(algorithm, 0)
    assert 0 < int((noise.abs() > 0.4).sum()) < noise.numel()
    action = algorithm._trained["actor"].target.forward(random_batch("continuous", 0).next_observation).tanh()
    assert 0 < int(((action + noise.clamp(-0.4, 0.4)).abs() > 1.0).sum()) < noise.numel()
