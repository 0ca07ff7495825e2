"""Bundles what belongs to one trained network: parameters, gradient, optimizer and, optionally, a target network."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from agentpod.algorithms.flat_adam import FlatAdam
from agentpod.models.mlp import FeedForward, Shapes, flat_views


class Trainable:
    """A network over a flat buffer, its gradient over a second one, and its target network over a third.

        trace = critic.network.trace(inputs)
        critic.network.backward(gradient_of(trace[-1]), trace, critic.gradient)
        norm = critic.optimizer.step()
        critic.update_target(0.005)

    Attributes:
        flat: [P] float32, the trained parameters.
        network: The network over views of `flat`.
        gradient: The same network over the gradient buffer.
        optimizer: Steps `flat` by the gradient buffer.
        target: The target network; `network` itself if there is none.
        target_flat: [P] float32, parameters of the target network; empty if there is none.
    """

    def __init__(
        self,
        name: str,
        flat: Tensor,
        shapes: Shapes,
        make: Callable[[str, Mapping[str, Tensor]], FeedForward],
        *,
        learning_rate: float,
        epsilon: float,
        maximum_norm: float,
        target: bool,
    ) -> None:
        """Creates a network over `flat`, whose content is kept.

        Args:
            name: Of the network within `shapes`.
            flat: [P] float32.
            shapes: Of its tensors, in order and without gaps.
            make: Creates the network of that name over views of a buffer; see agentpod.models.factory.
            learning_rate: Of Adam.
            epsilon: Of Adam.
            maximum_norm: See FlatAdam.
            target: Whether there is a target network.
        """
        self.name, self.flat = name, flat
        self.network = make(name, flat_views(flat, shapes))
        gradient_flat = torch.zeros_like(flat)
        self.gradient = make(name, flat_views(gradient_flat, shapes))
        self.optimizer = FlatAdam(
            flat, gradient_flat, learning_rate=learning_rate, epsilon=epsilon, maximum_norm=maximum_norm
        )
        self.target_flat = flat.clone() if target else flat.new_empty(0)
        self.target = make(name, flat_views(self.target_flat, shapes)) if target else self.network

    def update_target(self, rate: float) -> None:
        """Moves the target network towards the network by Polyak averaging (Lillicrap et al. 2016, arXiv 1509.02971).

            target += rate (network - target)

        Has no effect without a target network.

        Args:
            rate: Tau; 1 copies the network.
        """
        if self.target is self.network:
            return
        if rate == 1.0:
            self.target_flat.copy_(self.flat)
        else:
            self.target_flat.lerp_(self.flat, rate)

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns all live tensors that training changes, by names that begin with the network's."""
        return {
            f"{self.name}.flat": self.flat,
            f"{self.name}.target": self.target_flat,
            **{f"{self.name}.optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()},
        }


def step_critics(critics: Trainable, inputs: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Makes one gradient step of every critic of an ensemble towards the same targets.

        loss = sum over critics c of mean over b of weight_b (Q_c(inputs_b) - target_b)^2

    Args:
        critics: C critics with one output.
        inputs: [B, D].
        target: [B], held fixed.
        weight: [B].

    Returns:
        The loss []; the absolute errors [B], mean over the critics; the mean value []; the gradient norm [].
    """
    trace = critics.network.trace(inputs)
    values = trace[-1].squeeze(-1)
    error = values - target
    weighted = error * weight
    loss = (weighted * error).sum() / len(target)
    critics.network.backward(weighted.mul_(2.0 / len(target)).unsqueeze(-1), trace, critics.gradient)
    return loss, error.abs().mean(0), values.mean(), critics.optimizer.step()


def reduce_critics(values: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Reduces the values of an ensemble, and computes the derivative of the reduction.

    Args:
        values: [C, ...], of C critics.
        reduction: `min` or `mean`.

    Returns:
        The minimum or the mean [...]; its derivative with respect to each value [C, ...].
    """
    if reduction == "mean" or len(values) == 1:
        return values.mean(0), torch.full_like(values, 1.0 / len(values))
    least, member = values.min(0)
    return least, torch.zeros_like(values).scatter_(0, member.unsqueeze(0), 1.0)
