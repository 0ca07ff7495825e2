"""Owns what belongs to one trained network: its gradient, its optimizer and, where there is one, its slow copy."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from agentpod.algorithms.flat_adam import FlatAdam
from agentpod.models.mlp import FeedForward, Shapes, flat_views


class Trainable:
    """A network over one flat buffer, its gradient over another and its target network over a third.

        trace = critic.network.trace(inputs)
        critic.network.backward(gradient_of(trace[-1]), trace, critic.gradient)
        norm = critic.optimizer.step()
        critic.follow(0.005)

    Attributes:
        flat: [P] float32, what is trained.
        network: Over views of `flat`.
        gradient: The network's twin over the gradient buffer.
        optimizer: Steps `flat` along that buffer.
        target: The slow copy; `network` itself where there is none.
        target_flat: [P] float32, of the target; empty where there is none.
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
        """Lays a network over `flat`, whose content stays.

        Args:
            name: Of the network within `shapes`.
            flat: [P] float32.
            shapes: Of its tensors, in order and without gaps.
            make: The network of that name over views of a buffer; see agentpod.models.factory.
            learning_rate: Step size of Adam.
            epsilon: Of Adam.
            maximum_norm: As FlatAdam takes it.
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
        """Moves the target towards the network (Lillicrap et al. 2016): target += rate (network - target).

        Where there is no target, nothing moves.
        """
        if self.target is self.network:
            return
        if rate == 1.0:
            self.target_flat.copy_(self.flat)
        else:
            self.target_flat.lerp_(self.flat, rate)

    def tensors(self) -> Mapping[str, Tensor]:
        """All that training changes, live, by names that begin with the network's."""
        return {
            f"{self.name}.flat": self.flat,
            f"{self.name}.target": self.target_flat,
            **{f"{self.name}.optimizer.{name}": tensor for name, tensor in self.optimizer.tensors().items()},
        }
