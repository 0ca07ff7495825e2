"""Builds the networks of actors and critics: the only module that selects between their kinds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.models.agent_networks import AgentNetworks
from agentpod.models.cnn import NO_TORSO, TORSOS, ConvolutionalNetwork, image_layout
from agentpod.models.composite import CompositeNetwork, Encoder
from agentpod.models.gru import RecurrentNetwork
from agentpod.models.mlp import FeedForward, MultilayerPerceptron, Network, Shapes
from agentpod.models.user_network import ACTOR, UserNetwork
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.spaces.entries import BYTES, MASK, Entry, columns
from simulators.base import Space


@dataclass(frozen=True)
class NetworkFactory:
    """Builds networks over one observation space.

        shapes = factory.shapes("critic", outputs=1)
        network = factory.make("critic", flat_views(flat, shapes))

    Tensors are stored in forward order: `<name>.torso.<i>.weight` and `.bias` of convolutions, then `<name>.<i>.weight`
    and `.bias` of linear layers. A recurrent network also has `<name>.recurrent.*` (see agentpod.models.gru), and
    `<name>.output.0.weight` and `.bias`. The first hidden layer of a network over composite observations consists of
    encoders, `<name>.encoder.<i>.*`: one for each entry but the action mask, in their order, and one for extra inputs.
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
    network_class: str = ""
    """Class of the actor's network; empty: the layers above. Critics always have these layers."""
    network_options: tuple[tuple[str, float], ...] = ()
    """Arguments of that class."""
    actor_outputs: int = 0
    """Number of outputs of the actor; only for `network_class`."""
    agents: int = 0
    """Number of agents with separate networks, which have a leading [A] in every tensor; 0 = one network for all."""

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
        if self.network_class and name == ACTOR:
            return self.user_network().shapes()
        members = members or self.agents
        if not self.recurrent_size:
            return self._feedforward_shapes(name, (*self.hidden_sizes, outputs), extra, members)
        body = self._feedforward_shapes(name, self.hidden_sizes, extra, members)
        following = RecurrentNetwork.shapes(name, self.hidden_sizes[-1], self.recurrent_size, outputs)
        return {**body, **following}

    def _feedforward_shapes(self, name: str, sizes: tuple[int, ...], extra: int, members: int) -> Shapes:
        space = self.observation_space
        if space.entries:
            return self._composite_shapes(name, sizes, extra, members)
        if self.torso == NO_TORSO:
            return MultilayerPerceptron.shapes(name, (math.prod(space.shape) + extra, *sizes), members)
        pictures = image_layout(space, self.torso)
        return ConvolutionalNetwork.shapes(name, pictures, TORSOS[self.torso], sizes, extra=extra, members=members)

    def _composite_shapes(self, name: str, sizes: tuple[int, ...], extra: int, members: int) -> Shapes:
        units, rest = sizes[0], sizes[1:]
        if not self.hidden_sizes or not rest:
            raise InvalidArgument(
                "composite observations (Dict, Tuple) need a hidden layer, and with recurrent_size a second one, "
                f"because the first one encodes the entries: add one to hidden_sizes {list(self.hidden_sizes)}"
            )
        if self.torso != NO_TORSO and not any(_is_image(entry) for _, entry, _ in self.encoded()):
            raise InvalidArgument(
                f"torso {self.torso!r} needs an entry with images of dtype uint8, but the observations have none; "
                f"set torso = {NO_TORSO!r}",
                reason=UNSUITABLE_SPACE,
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for prefix, entry, _ in self.encoded(name):
            if self.has_torso(entry):
                pictures, layers = image_layout(image_space(entry), self.torso), TORSOS[self.torso]
                shapes |= ConvolutionalNetwork.shapes(prefix, pictures, layers, (units,), members=members)
            else:
                shapes |= MultilayerPerceptron.shapes(prefix, (entry.size, units), members)
        count = len(self.encoded())
        if extra:
            shapes |= MultilayerPerceptron.shapes(f"{name}.encoder.{count}", (extra, units), members)
        return shapes | MultilayerPerceptron.shapes(name, ((count + bool(extra)) * units, *rest), members)

    def encoded(self, name: str = "") -> list[tuple[str, Entry, slice]]:
        """Returns the entries with an encoder: the name of the encoder, the entry and its columns."""
        seen = [(entry, place) for entry, place in columns(self.observation_space.entries) if entry.encoding != MASK]
        return [(f"{name}.encoder.{index}", entry, place) for index, (entry, place) in enumerate(seen)]

    def has_torso(self, entry: Entry) -> bool:
        """Whether the encoder of an entry begins with convolutions."""
        return self.torso != NO_TORSO and _is_image(entry)

    def _make_composite(self, name: str, tensors: Mapping[str, Tensor]) -> CompositeNetwork:
        encoders = [
            Encoder(place, self._make_encoder(prefix, entry, tensors)) for prefix, entry, place in self.encoded(name)
        ]
        end, extra = math.prod(self.observation_space.shape), f"{name}.encoder.{len(encoders)}"
        if f"{extra}.0.weight" in tensors:
            place = slice(end, end + tensors[f"{extra}.0.weight"].shape[-1])
            encoders.append(Encoder(place, MultilayerPerceptron(extra, tensors, self.activation)))
        return CompositeNetwork(encoders, MultilayerPerceptron(name, tensors, self.activation), self.activation)

    def _make_encoder(self, name: str, entry: Entry, tensors: Mapping[str, Tensor]) -> FeedForward:
        if not self.has_torso(entry):
            return MultilayerPerceptron(name, tensors, self.activation)
        pictures, layers = image_layout(image_space(entry), self.torso), TORSOS[self.torso]
        return ConvolutionalNetwork(name, tensors, pictures, layers, self.activation, scale=1.0)

    def make(self, name: str, tensors: Mapping[str, Tensor]) -> Network:
        """Builds the network of that name over views of a flat buffer, which have the names that `shapes` returns."""
        body = self.make_feedforward(name, tensors)
        if self.agents:
            return AgentNetworks(body, self.agents, tensors.get("log_std") if name == ACTOR else None)
        return RecurrentNetwork(name, body, tensors, self.activation) if self.recurrent_size else body

    def user_network(self) -> UserNetwork:
        """Returns the actor that `network_class` names."""
        sizes = self.observation_space.shape, self.actor_outputs, self.hidden_sizes
        return UserNetwork.build(self.network_class, dict(self.network_options), *sizes, self.activation)

    def make_feedforward(self, name: str, tensors: Mapping[str, Tensor]) -> FeedForward:
        """Builds the same network without its recurrent part; it may be an ensemble."""
        if self.network_class and name == ACTOR:
            return self.user_network().over(tensors)
        if self.observation_space.entries:
            return self._make_composite(name, tensors)
        if self.torso == NO_TORSO:
            return MultilayerPerceptron(name, tensors, self.activation)
        pictures = image_layout(self.observation_space, self.torso)
        return ConvolutionalNetwork(name, tensors, pictures, TORSOS[self.torso], self.activation)


def _is_image(entry: Entry) -> bool:
    return entry.encoding == BYTES and len(entry.shape) == 3


def image_space(entry: Entry) -> Space:
    """Returns the space of the images of an entry."""
    return Space("continuous", entry.shape, torch.uint8)
