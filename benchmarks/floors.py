"""Owns the floors that training is held against: its matrix products alone and its simulator alone.

The products are those of one update, forward and backward, one by one and in the shapes of a minibatch, by plain
torch.mm into memory that is there already: no activations, losses, optimizer, sampling, acting or copies.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from simulators import Simulator, make

Product = tuple[Tensor, Tensor, Tensor]
"""Left and right factor, and where the result goes."""


class Perceptron:
    """Products of linear layers; each result is the next one's factor, as warm in the caches as in training."""

    def __init__(self, sizes: Sequence[int], rows: int, weights: Sequence[Tensor] | None = None) -> None:
        """Draws factors whose products stay of one size.

        Args:
            sizes: Of its layers, input and output included.
            rows: Of a batch.
            weights: Of another of the same sizes, to be shared; None: its own.
        """
        self.weights = weights or [torch.randn(outputs, inputs) / inputs**0.5 for inputs, outputs in pairwise(sizes)]
        self._activations = [torch.randn(rows, size) for size in sizes]
        self._gradients = [torch.randn(rows, size) for size in sizes]
        self._weight_gradients = [torch.empty_like(weight) for weight in self.weights]

    def forward(self) -> list[Product]:
        """One a layer."""
        outputs = self._activations[1:]
        return [(x, weight.T, y) for x, weight, y in zip(self._activations, self.weights, outputs, strict=False)]

    def backward(self) -> list[Product]:
        """Two a layer: the gradient of the weights and, except at the first layer, that of its inputs."""
        products: list[Product] = []
        for layer in reversed(range(len(self.weights))):
            gradient = self._gradients[layer + 1]
            products.append((gradient.T, self._activations[layer], self._weight_gradients[layer]))
            if layer > 0:
                products.append((gradient, self.weights[layer], self._gradients[layer]))
        return products

    def input_gradient(self, columns: int) -> list[Product]:
        """One a layer: what a loss passes on to the last `columns` of the inputs, and nothing for the weights."""
        later = [
            (self._gradients[layer + 1], self.weights[layer], self._gradients[layer])
            for layer in reversed(range(1, len(self.weights)))
        ]
        into = torch.empty(len(self._gradients[0]), columns)
        return [*later, (self._gradients[1], self.weights[0][:, -columns:], into)]


def ppo_update(
    observations: int, outputs: int, hidden_sizes: Sequence[int], rollout: int, minibatch: int, epochs: int
) -> list[Product]:
    """Products of one update of PPO: actor and critic, forward and backward, on every minibatch of every epoch.

    Args:
        observations: Numbers in an observation.
        outputs: Of the actor.
        hidden_sizes: Of the actor, and of the critic.
        rollout: Steps of a rollout, over all environments; a multiple of `minibatch`.
        minibatch: Steps of a minibatch.
        epochs: Passes over the rollout.
    """
    actor = Perceptron((observations, *hidden_sizes, outputs), minibatch)
    critic = Perceptron((observations, *hidden_sizes, 1), minibatch)
    once = [*critic.forward(), *critic.backward(), *actor.forward(), *actor.backward()]
    return once * (epochs * rollout // minibatch)


def sac_update(observations: int, actions: int, hidden_sizes: Sequence[int], batch: int) -> list[Product]:
    """Products of one gradient step of SAC with two critics (Haarnoja et al. 2018, arXiv 1812.05905, section 5).

    Critics: the actor on s' for a', both targets on (s', a'), both critics on (s, a) and back. Actor: the actor on s
    for a, both critics on (s, a), their gradient with respect to a, and the actor back. The temperature has none.

    Args:
        observations: Numbers in an observation.
        actions: Numbers in an action; the actor has two outputs for each.
        hidden_sizes: Of the actor, and of each critic.
        batch: Steps replayed.
    """
    actor_sizes = (observations, *hidden_sizes, 2 * actions)
    critic_sizes = (observations + actions, *hidden_sizes, 1)
    actor = Perceptron(actor_sizes, batch)
    critics = [Perceptron(critic_sizes, batch) for _ in range(2)]
    targets = [Perceptron(critic_sizes, batch) for _ in range(2)]
    # Of the same weights, on other actions.
    judges = [Perceptron(critic_sizes, batch, critic.weights) for critic in critics]
    products = actor.forward()
    for target in targets:
        products += target.forward()
    for critic in critics:
        products += critic.forward() + critic.backward()
    products += actor.forward()
    for judge in judges:
        products += judge.forward() + judge.input_gradient(actions)
    return products + actor.backward()


def updates_per_second(products: Sequence[Product], seconds: float) -> float:
    """How often a second the products of one update can be computed."""
    with torch.inference_mode():
        return _repeats_per_second(lambda: _multiply(products), seconds)


def _multiply(products: Sequence[Product]) -> None:
    for left, right, result in products:
        torch.mm(left, right, out=result)


def simulator_steps_per_second(environment: str, count: int, seconds: float, horizon: int = 128) -> float:
    """Environment steps a second of the simulator alone, with random actions drawn beforehand.

    Args:
        environment: Id, as simulators.make takes it.
        count: Environments side by side.
        seconds: How long it is measured.
        horizon: Sets of actions drawn; then they repeat.
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
