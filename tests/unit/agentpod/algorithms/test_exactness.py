"""Tests the gradient step of every algorithm, and that of A2C against the paper.

The losses of the off-policy families are tested in test_exactness_values and test_exactness_soft, that of PPO in
test_ppo.
"""

import itertools
import math
from typing import Any

import pytest
import torch
from exactness import ACTIVATIONS, Descent, descend, random_batch, random_noise, scrambled
from exactness import one_thread as one_thread
from experience import LANES, OFF_POLICY, ON_POLICY, SPACES, new_algorithm, random_rollout
from references import a2c_loss
from torch import Tensor

from agentpod.algorithms.ppo import HIGHEST_RATE, LOWEST_RATE, adaptive_learning_rate
from agentpod.experience.rollout_batch import RolloutBatch
from agentpod.experience.transitions import TransitionBatch

EVERY_OFF_POLICY_ALGORITHM = pytest.mark.parametrize(("name", "kind"), OFF_POLICY)
SIZE = 7


def small_steps(name: str, kind: str, **hyperparameters: object) -> Any:
    """Returns an algorithm for batches of SIZE that updates all its networks in every step."""
    settings = {"activation": "tanh", "batch_size": SIZE, **({"policy_delay": 1} if name == "td3" else {})}
    return scrambled(name, kind, 0, **settings, **hyperparameters)


def step_on(name: str, kind: str, rows: list[int]) -> Descent:
    """Makes a gradient step on these rows of a fixed batch and its noise, with fixed networks."""
    algorithm = small_steps(name, kind)
    batch, noise, index = random_batch(kind, 0, SIZE), random_noise(algorithm, 0), torch.tensor(rows)
    # Noise has one row for each step, or one for each observation and each next observation, or none.
    noise = torch.cat([part[index] for part in noise.split(SIZE)]) if len(noise) else noise
    return descend(algorithm, TransitionBatch(*(field[index] for field in batch)), noise)


def assert_same_step(one: Descent, other: Descent) -> None:
    for name, value in one.metrics.items():
        assert other.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for name, gradient in one.gradient.items():
        torch.testing.assert_close(
            other.gradient[name], gradient, rtol=1e-3, atol=1e-5 * (1 + float(gradient.abs().max()))
        )


@pytest.mark.long
@EVERY_OFF_POLICY_ALGORITHM
def test_a_batch_that_repeats_one_step_equals_that_step(name: str, kind: str) -> None:
    one, repeated = step_on(name, kind, [3]), step_on(name, kind, [3] * SIZE)
    assert_same_step(one, repeated)
    torch.testing.assert_close(repeated.errors, one.errors.expand(SIZE))


@EVERY_OFF_POLICY_ALGORITHM
def test_the_order_of_a_batch_affects_only_the_order_of_errors(name: str, kind: str) -> None:
    order = [4, 0, 6, 2, 5, 1, 3]
    straight, shuffled = step_on(name, kind, list(range(SIZE))), step_on(name, kind, order)
    assert_same_step(straight, shuffled)
    torch.testing.assert_close(shuffled.errors, straight.errors[order])
    assert straight.errors.unique().numel() == SIZE


@EVERY_OFF_POLICY_ALGORITHM
def test_an_error_does_not_depend_on_other_steps(name: str, kind: str) -> None:
    together = step_on(name, kind, list(range(SIZE)))
    for row in range(SIZE):
        torch.testing.assert_close(step_on(name, kind, [row]).errors, together.errors[row : row + 1])


@EVERY_OFF_POLICY_ALGORITHM
def test_a_step_returns_one_number_per_metric_and_one_error_per_row(name: str, kind: str) -> None:
    algorithm = small_steps(name, kind)
    metrics, errors = algorithm._gradient_step(random_batch(kind, 0, SIZE), random_noise(algorithm, 0))
    assert metrics.shape == (len(algorithm.METRICS),)
    assert errors.shape == (SIZE,)
    assert errors.ge(0).all()


@EVERY_OFF_POLICY_ALGORITHM
def test_large_gradients_are_clipped_and_their_original_norm_is_returned(name: str, kind: str) -> None:
    free, held = (small_steps(name, kind, maximum_gradient_norm=limit) for limit in (0.0, 0.01))
    noise = random_noise(free, 0)
    random_noise(held, 0)
    for algorithm in (free, held):
        algorithm._gradient_step(random_batch(kind, 0, SIZE), noise)
    for key, trained in held._trained.items():
        found, whole = trained.optimizer.gradient, free._trained[key].optimizer.gradient
        assert whole.norm() > 0.02
        torch.testing.assert_close(found.norm(), torch.tensor(0.01), rtol=1e-3, atol=0)
        torch.testing.assert_close(found / found.norm(), whole / whole.norm(), rtol=1e-3, atol=1e-3)


A2C_CASES = [
    (kind, activation, standardize)
    for (name, kind), activation, standardize in itertools.product(ON_POLICY, ACTIVATIONS, (False, True))
    if name == "a2c"
]


def prepared(kind: str, seed: int) -> RolloutBatch:
    generator = torch.Generator().manual_seed(400 + seed)
    observation = torch.randn(19, 3, generator=generator)
    log_prob, advantage, value, target = torch.randn(4, 19, generator=generator)
    action = torch.randn(19, 2, generator=generator)
    if kind == "discrete":
        action = torch.randint(3, (19,), generator=generator)
    elif kind != "continuous":
        numbers = [torch.randint(n, (19,), generator=generator) for n in SPACES[kind].choices or (2, 2, 2)]
        action = torch.stack(numbers, 1)
    return RolloutBatch(
        observation=observation, action=action, log_prob=log_prob, advantage=advantage, value=value, target=target
    )


@pytest.mark.parametrize(("kind", "activation", "standardize"), A2C_CASES)
def test_an_a2c_step_follows_the_loss_of_the_paper(kind: str, activation: str, standardize: bool) -> None:
    for seed in range(3):
        algorithm: Any = new_algorithm(
            "a2c",
            kind,
            seed,
            activation=activation,
            hidden_sizes=[8, 6],
            normalize_observations=False,
            normalize_advantages=standardize,
            entropy_coefficient=0.05,
            value_coefficient=0.7,
            maximum_gradient_norm=0.0,
        )
        networks = algorithm._networks
        generator = torch.Generator().manual_seed(seed)
        networks.parameters.copy_(0.5 * torch.randn(networks.parameters.shape, generator=generator))
        tensors: dict[str, Tensor] = {**networks.policy.tensors(), **networks.critic_tensors}
        leaves = {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}
        assert ("log_std" in leaves) == (kind == "continuous")
        batch = prepared(kind, seed)
        networks.gradient.fill_(math.nan)
        (metrics,) = algorithm._train(batch)

        loss = a2c_loss(
            leaves,
            batch.observation.double(),
            batch.action.double() if kind == "continuous" else batch.action,
            batch.advantage.double(),
            batch.target.double(),
            activation=activation,
            entropy_coefficient=0.05,
            value_coefficient=0.7,
            standardize=standardize,
            choices=SPACES[kind].choices,
        )
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for name, gradient in zip(leaves, gradients, strict=True):
            found = networks.gradients[name].double()
            torch.testing.assert_close(found, gradient, rtol=1e-4, atol=2e-5 * float(gradient.abs().max()))
        metrics_by_name = dict(zip(algorithm.METRICS, metrics.tolist(), strict=True))
        assert metrics_by_name["policy_loss"] - 0.05 * metrics_by_name["entropy"] + 0.7 * metrics_by_name[
            "value_loss"
        ] == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        assert metrics_by_name["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_the_adaptive_rate_falls_above_twice_and_rises_below_half_the_desired_kl() -> None:
    assert adaptive_learning_rate(1e-3, divergence=0.0201, desired=0.01) == pytest.approx(1e-3 / 1.5)
    assert adaptive_learning_rate(1e-3, divergence=0.0049, desired=0.01) == pytest.approx(1.5e-3)
    for divergence in (0.0051, 0.01, 0.0199):
        assert adaptive_learning_rate(1e-3, divergence, desired=0.01) == 1e-3


def test_the_adaptive_rate_stays_within_bounds_and_outside_them_moves_only_towards_them() -> None:
    rate = 1e-3
    for _ in range(30):
        rate = adaptive_learning_rate(rate, divergence=1.0, desired=0.01)
    assert rate == LOWEST_RATE
    for _ in range(30):
        rate = adaptive_learning_rate(rate, divergence=0.0, desired=0.01)
    assert rate == HIGHEST_RATE
    assert adaptive_learning_rate(LOWEST_RATE / 10, divergence=1.0, desired=0.01) <= LOWEST_RATE / 10
    assert adaptive_learning_rate(HIGHEST_RATE * 10, divergence=0.0, desired=0.01) >= HIGHEST_RATE * 10


def ppo(desired_kl: float, **hyperparameters: object) -> Any:
    settings: dict[str, object] = {"epochs": 1, "minibatch_size": 8, "learning_rate": 1e-3, "horizon": 8}
    return new_algorithm("ppo", "discrete", **{**settings, **hyperparameters}, desired_kl=desired_kl)


def test_an_update_adapts_the_rate_to_its_kl() -> None:
    free = ppo(0.0)
    rollout = random_rollout(free, "discrete", 0, LANES)
    divergence = free.update(rollout)["approximate_kl"]
    assert divergence > 0
    assert float(free._optimizer.rate) == 1e-3
    for desired, factor in ((divergence / 3, 1 / 1.5), (divergence, 1.0), (3 * divergence, 1.5)):
        algorithm = ppo(desired)
        algorithm.update(rollout)
        assert float(algorithm._optimizer.rate) == pytest.approx(1e-3 * factor)


def test_the_last_epoch_determines_the_rate() -> None:
    # The first epoch starts at the acting policy, so its divergence is 0 and the mean is half of the last one's.
    settings: dict[str, object] = {"epochs": 2, "minibatch_size": 8 * LANES}
    free = ppo(0.0, **settings)
    rollout = random_rollout(free, "discrete", 0, LANES)
    mean = free.update(rollout)["approximate_kl"]
    algorithm = ppo(0.8 * mean, **settings)
    algorithm.update(rollout)
    assert float(algorithm._optimizer.rate) == pytest.approx(1e-3 / 1.5)


def test_only_an_adaptive_rate_is_restored_from_a_state() -> None:
    for desired, factor in ((10.0, 1.5), (0.0, 1.0)):
        algorithm, resumed = ppo(desired), ppo(desired, learning_rate=1e-3 if desired else 7e-4)
        algorithm.update(random_rollout(algorithm, "discrete", 0, LANES))
        resumed.load_state_dict(algorithm.state_dict())
        expected = 1e-3 * factor if desired else 7e-4
        assert float(resumed._optimizer.rate) == pytest.approx(expected)
