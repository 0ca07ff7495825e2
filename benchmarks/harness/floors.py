"""Measures lower bounds on the time of training: its matrix products alone, and its simulator alone.

The products are those of one update, forward and backward, one after the other and in the shapes of a minibatch,
computed by torch.mm into preallocated memory: without activations, losses, optimizer, sampling, acting or copies.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from simulators import Simulator, make

Product = tuple[Tensor, Tensor, Tensor]
"""Left factor, right factor, and the result."""


class Perceptron:
    """Products of linear layers; each result is a factor of the next product, so caches are as warm as in training."""

    def __init__(self, sizes: Sequence[int], rows: int, weights: Sequence[Tensor] | None = None) -> None:
        """Draws factors scaled so that their products keep the same magnitude.

        Args:
            sizes: Sizes of the layers, including input and output.
            rows: Rows of a batch.
            weights: Weights shared with another perceptron of the same sizes; None: its own.
        """
        self.weights = weights or [torch.randn(outputs, inputs) / inputs**0.5 for inputs, outputs in pairwise(sizes)]
        self._activations = [torch.randn(rows, size) for size in sizes]
        self._gradients = [torch.randn(rows, size) for size in sizes]
        self._weight_gradients = [torch.empty_like(weight) for weight in self.weights]

    def forward(self) -> list[Product]:
        """Returns the products of the forward pass, one per layer."""
        outputs = self._activations[1:]
        return [(x, weight.T, y) for x, weight, y in zip(self._activations, self.weights, outputs, strict=False)]

    def backward(self) -> list[Product]:
        """Returns two products per layer: the gradient of the weights and, except in the first layer, of the inputs."""
        products: list[Product] = []
        for layer in reversed(range(len(self.weights))):
            gradient = self._gradients[layer + 1]
            products.append((gradient.T, self._activations[layer], self._weight_gradients[layer]))
            if layer > 0:
                products.append((gradient, self.weights[layer], self._gradients[layer]))
        return products

    def input_gradient(self, columns: int) -> list[Product]:
        """Returns one product per layer: the gradient of the last `columns` inputs, without gradients of weights."""
        later = [
            (self._gradients[layer + 1], self.weights[layer], self._gradients[layer])
            for layer in reversed(range(1, len(self.weights)))
        ]
        into = torch.empty(len(self._gradients[0]), columns)
        return [*later, (self._gradients[1], self.weights[0][:, -columns:], into)]


def ppo_update(
    observations: int, outputs: int, hidden_sizes: Sequence[int], rollout: int, minibatch: int, epochs: int
) -> list[Product]:
    """Returns the products of one PPO update: actor and critic, forward and backward, on every minibatch and epoch.

    Args:
        observations: Size of an observation.
        outputs: Outputs of the actor.
        hidden_sizes: Hidden layers of the actor and of the critic.
        rollout: Steps of a rollout, over all environments; a multiple of `minibatch`.
        minibatch: Steps of a minibatch.
        epochs: Passes over the rollout.
    """
    actor = Perceptron((observations, *hidden_sizes, outputs), minibatch)
    critic = Perceptron((observations, *hidden_sizes, 1), minibatch)
    once = [*critic.forward(), *critic.backward(), *actor.forward(), *actor.backward()]
    return once * (epochs * rollout // minibatch)


def sac_update(observations: int, actions: int, hidden_sizes: Sequence[int], batch: int) -> list[Product]:
    """Returns the products of one SAC gradient step with two critics (Haarnoja et al. 2018, arXiv 1812.05905, sec. 5).

    Critics: the actor on s' for a', both targets on (s', a'), both critics on (s, a), and their backward passes. Actor:
    the actor on s for a, both critics on (s, a), their gradient with respect to a, and the actor's backward pass. The
    temperature needs no products.

    Args:
        observations: Size of an observation.
        actions: Size of an action; the actor has two outputs per element.
        hidden_sizes: Hidden layers of the actor and of each critic.
        batch: Steps replayed.
    """
    actor_sizes = (observations, *hidden_sizes, 2 * actions)
    critic_sizes = (observations + actions, *hidden_sizes, 1)
    actor = Perceptron(actor_sizes, batch)
    critics = [Perceptron(critic_sizes, batch) for _ in range(2)]
    targets = [Perceptron(critic_sizes, batch) for _ in range(2)]
    # With the weights of the critics, on other actions.
    policy_critics = [Perceptron(critic_sizes, batch, critic.weights) for critic in critics]
    products = actor.forward()
    for target in targets:
        products += target.forward()
    for critic in critics:
        products += critic.forward() + critic.backward()
    products += actor.forward()
    for critic in policy_critics:
        products += critic.forward() + critic.input_gradient(actions)
    return products + actor.backward()


def updates_per_second(products: Sequence[Product], seconds: float) -> float:
    """Measures how many times per second the products of one update can be computed."""
    with torch.inference_mode():
        return _repeats_per_second(lambda: _multiply(products), seconds)


def _multiply(products: Sequence[Product]) -> None:
    for left, right, result in products:
        torch.mm(left, right, out=result)


def simulator_steps_per_second(environment: str, count: int, seconds: float, horizon: int = 128) -> float:
    """Measures the environment steps per second of the simulator alone, with random actions drawn in advance.

    Args:
        environment: Id of the simulator.
        count: Number of parallel environments.
        seconds: Duration of the measurement.
        horizon: Number of batches of actions, which are repeated.
    """
    simulator = make(environment, count)
    simulator.reset(0)
    actions = _random_actions(simulator, horizon)

    def play() -> None:
        for action in actions:
            simulator.step(action)

    try:
        return horizon * count * _repeats_per_second(play, seconds)
    finally:
        simulator.close()


def _random_actions(simulator: Simulator, horizon: int) -> Tensor:
    space = simulator.action_space
    if space.kind == "discrete":
        return torch.randint(space.n, (horizon, simulator.count))
    return torch.rand(horizon, simulator.count, *space.shape) * 2 - 1


def _repeats_per_second(repeat: Callable[[], None], seconds: float) -> float:
    repeat()
    repeats, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        repeat()
        repeats += 1
    return repeats / (time.perf_counter() - began)
