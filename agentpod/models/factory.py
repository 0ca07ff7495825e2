"""Builds the networks of actors and critics: the only module that selects between perceptron, convolutions and GRU."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from agentpod.models.cnn import NO_TORSO, TORSOS, ConvolutionalNetwork, image_layout
from agentpod.models.gru import RecurrentNetwork
from agentpod.models.mlp import FeedForward, MultilayerPerceptron, Network, Shapes
from simulators.base import Space


@dataclass(frozen=True)
class NetworkFactory:
    """Builds networks over one observation space.

        shapes = factory.shapes("critic", outputs=1)
        network = factory.make("critic", flat_views(flat, shapes))

    Tensors are stored in forward order: `<name>.torso.<i>.weight` and `.bias` of convolutions, then `<name>.<i>.weight`
    and `.bias` of linear layers. A recurrent network also has `<name>.recurrent.*` (see agentpod.models.gru), and
    `<name>.output.0.weight` and `.bias`.
    """

    observation_space: Space
    """Space of the inputs."""
    hidden_sizes: tuple[int, ...]
    """Units of each hidden layer."""
    activation: str
    """Key of agentpod.models.mlp.ACTIVATIONS."""
    torso: str = NO_TORSO
    """Key of agentpod.models.cnn.TORSOS: the convolutions before the hidden layers."""
    recurrent_size: int = 0
    """Size of the GRU between the hidden layers and the output; 0 = no recurrence."""

    def shapes(self, name: str, outputs: int, *, extra: int = 0, members: int = 0) -> Shapes:
        """Returns names and shapes of a network's tensors.

        Args:
            name: Of the network.
            outputs: Number of outputs.
            extra: Number of inputs after those of the observation (an action, for example).
            members: C of an ensemble, which must not be recurrent; 0 = a single network.

        Raises:
            InvalidArgument: The torso does not support these observations.
        """
        if not self.recurrent_size:
            return self._feedforward_shapes(name, (*self.hidden_sizes, outputs), extra, members)
        body = self._feedforward_shapes(name, self.hidden_sizes, extra, members)
        following = RecurrentNetwork.shapes(name, self.hidden_sizes[-1], self.recurrent_size, outputs)
        return {**body, **following}

    def _feedforward_shapes(self, name: str, sizes: tuple[int, ...], extra: int, members: int) -> Shapes:
        space = self.observation_space
        if self.torso == NO_TORSO:
            return MultilayerPerceptron.shapes(name, (math.prod(space.shape) + extra, *sizes), members)
        pictures = image_layout(space, self.torso)
        return ConvolutionalNetwork.shapes(name, pictures, TORSOS[self.torso], sizes, extra=extra, members=members)

    def make(self, name: str, tensors: Mapping[str, Tensor]) -> Network:
        """Builds the network of that name over views of a flat buffer, which have the names that `shapes` returns."""
        body = self.make_feedforward(name, tensors)
        return RecurrentNetwork(name, body, tensors, self.activation) if self.recurrent_size else body

    def make_feedforward(self, name: str, tensors: Mapping[str, Tensor]) -> FeedForward:
        """Builds the same network without its recurrent part; it may be an ensemble."""
        if self.torso == NO_TORSO:
            return MultilayerPerceptron(name, tensors, self.activation)
        pictures = image_layout(self.observation_space, self.torso)
        return ConvolutionalNetwork(name, tensors, pictures, TORSOS[self.torso], self.activation)
