"""Makes one gradient step of an off-policy algorithm on a given batch, for comparison with a reference."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import references
import torch
from experience import OBSERVED, SPACES, new_algorithm
from torch import Tensor

from agentpod.algorithms.off_policy import OffPolicy
from agentpod.experience.transitions import TransitionBatch

ACTIVATIONS = ("tanh", "relu", "elu")
BATCH = 19
DISCOUNTS = torch.tensor([0.99, 0.9801, 0.970299, 0.0])
"""Discounts of windows of one, two and three steps, and of one that terminated."""
# Steps of this size make a network before its step distinguishable from the same one after it.
LEARNING_RATE = 0.05


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Uses one torch thread: synchronizing threads takes most of the time of small float64 products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Descent(NamedTuple):
    """Inputs and results of one call of `_gradient_step`, in float64 where a reference reads them."""

    before: dict[str, Tensor]
    target: dict[str, Tensor]
    after: dict[str, Tensor]
    gradient: dict[str, Tensor]
    metrics: dict[str, float]
    errors: Tensor

    def leaves(self, name: str) -> dict[str, Tensor]:
        """Returns the parameters of network `name` before its step, as leaves to differentiate by."""
        return {key: tensor.requires_grad_() for key, tensor in self.before.items() if key.startswith(f"{name}.")}


def scrambled(name: str, kind: str, seed: int, **hyperparameters: object) -> Any:
    """Returns a new algorithm whose networks and targets all differ and whose parameters are not near zero."""
    settings = {"hidden_sizes": [8, 6], "learning_rate": LEARNING_RATE, **hyperparameters}
    algorithm: Any = new_algorithm(name, kind, seed, **settings)
    generator = torch.Generator().manual_seed(100 + seed)
    for trained in algorithm._trained.values():
        for flat in (trained.flat, trained.target_flat):
            flat.copy_(0.5 * torch.randn(flat.shape, generator=generator))
    return algorithm


def random_batch(kind: str, seed: int, size: int = BATCH) -> TransitionBatch:
    generator = torch.Generator().manual_seed(200 + seed)
    observation, following = torch.randn(2, size, *OBSERVED.shape, generator=generator)
    reward, weight = torch.randn(2, size, generator=generator)
    action = torch.tanh(torch.randn(size, 2, generator=generator))
    if kind == "discrete":
        action = torch.randint(SPACES[kind].n, (size,), generator=generator)
    discount = DISCOUNTS[torch.arange(size) % len(DISCOUNTS)]
    return TransitionBatch(observation, action, reward, discount, following, 0.2 + weight.abs(), torch.arange(size))


def random_noise(algorithm: OffPolicy, seed: int) -> Tensor:
    """Draws noise as the algorithm does, for one gradient step on BATCH steps."""
    generator = torch.Generator().manual_seed(300 + seed)
    noise = algorithm._noise(1, generator)[0]
    algorithm._draw(generator)
    return noise


def doubled(batch: TransitionBatch) -> references.Batch:
    """Converts a batch to float64 for the references."""
    fields = batch._asdict()
    return references.Batch(
        *(
            fields[name].double() if fields[name].is_floating_point() else fields[name]
            for name in references.Batch._fields
        )
    )


def parameters(networks: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns float64 copies, under the names that the references use."""
    found: dict[str, Tensor] = {}
    for name, network in networks.items():
        for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
            found[f"{name}.{layer}.weight"] = weight.double().clone()
            found[f"{name}.{layer}.bias"] = bias.double().clone()
    return found


def descend(algorithm: Any, batch: TransitionBatch, noise: Tensor) -> Descent:
    """Makes one gradient step. Gradients are NaN before it, so that unwritten ones are detected."""
    trained = algorithm._trained
    online = {name: each.network for name, each in trained.items()}
    before, target = parameters(online), parameters({name: each.target for name, each in trained.items()})
    for each in trained.values():
        each.optimizer.gradient.fill_(torch.nan)
    metrics, errors = algorithm._gradient_step(batch, noise)
    gradient = parameters({name: each.gradient for name, each in trained.items()})
    named = dict(zip(algorithm.METRICS, metrics.tolist(), strict=True))
    return Descent(before, target, parameters(online), gradient, named, errors)


def assert_gradient(descent: Descent, loss: Tensor, leaves: Mapping[str, Tensor]) -> float:
    """Asserts that every parameter's gradient equals that of the reference's loss; returns its norm."""
    expected = torch.autograd.grad(loss, list(leaves.values()))
    assert len(expected) > 0
    for name, gradient in zip(leaves, expected, strict=True):
        found = descent.gradient[name]
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(
            found,
            gradient,
            rtol=1e-4,
            atol=2e-5 * float(gradient.abs().max()),
            msg=lambda text, name=name: f"{name}: {text}",
        )
    return float(torch.cat([gradient.flatten() for gradient in expected]).norm())
