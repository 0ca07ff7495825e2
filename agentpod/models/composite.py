"""Implements networks for composite observations: an encoder for each entry, followed by a perceptron.

The first hidden layer of such a network consists of the encoders. An entry with images, if the network has a torso, is
encoded by convolutions and a linear layer, and any other by a linear layer (for a one-hot entry this is an embedding).
With a single entry and no torso, the network is the perceptron of the other observations.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agentpod.models.mlp import ACTIVATIONS, HIDDEN_GAIN, FeedForward, MultilayerPerceptron, Sequences


class Encoder(NamedTuple):
    """The part of a network that sees one entry."""

    columns: slice
    """Its columns in the inputs."""
    network: FeedForward
    """Its outputs, after an activation, are inputs of the perceptron."""


class CompositeNetwork:
    """Encoders side by side, then a perceptron over what they return.

    The inputs are [B, D + extra]: the row of a composite observation, then further inputs (such as an action), which
    one more encoder receives. Columns without an encoder, such as an action mask, are ignored. In an ensemble every
    member has its own encoders, and may have its own inputs [C, B, D + extra].
    """

    state_size: int = 0

    def __init__(self, encoders: Sequence[Encoder], perceptron: MultilayerPerceptron, activation: str) -> None:
        """Combines networks over the same buffer; `activation` (key of ACTIVATIONS) follows each encoder."""
        self._encoders, self._perceptron = tuple(encoders), perceptron
        self._activation_name, self._activation = activation, ACTIVATIONS[activation]
        first_weight = perceptron.weights[0]
        self._width = first_weight.shape[-1] // len(encoders)
        # How many tensors the trace of each encoder has does not depend on its inputs.
        self._lengths = [
            len(network.trace(first_weight.new_zeros(1, columns.stop - columns.start))) for columns, network in encoders
        ]

    def member(self, index: int) -> "CompositeNetwork":
        """Returns one member of an ensemble as a network over the same memory."""
        encoders = [Encoder(encoder.columns, encoder.network.member(index)) for encoder in self._encoders]
        return CompositeNetwork(encoders, self._perceptron.member(index), self._activation_name)

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws orthogonal weights, and sets biases to 0; see MultilayerPerceptron.initialize."""
        for encoder in self._encoders:
            encoder.network.initialize(generator, HIDDEN_GAIN)
        self._perceptron.initialize(generator, output_gain)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] for inputs [B, D + extra]; an ensemble adds a leading [C]."""
        # Without a trace, so that the activations of images are kept for a part of the rows at a time.
        found = [encoder.network.forward(inputs[..., encoder.columns]) for encoder in self._encoders]
        return self._perceptron.forward(torch.cat([self._activation.apply_(outputs) for outputs in found], -1))

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the traces of the encoders, the last tensor of each after the activation, then the perceptron's."""
        traces = [encoder.network.trace(inputs[..., encoder.columns]) for encoder in self._encoders]
        for trace in traces:
            self._activation.apply_(trace[-1])
        joined = self._perceptron.trace(torch.cat([trace[-1] for trace in traces], -1))
        return [tensor for trace in (*traces, joined) for tensor in trace]

    def _split(self, trace: list[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Splits a trace into those of the encoders and that of the perceptron."""
        parts, begin = [], 0
        for length in self._lengths:
            parts.append(trace[begin : begin + length])
            begin += length
        return parts, trace[begin:]

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "CompositeNetwork") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss.

        Args:
            output_gradient: [B, outputs] or [C, B, outputs], of the loss with respect to trace[-1].
            trace: What `trace` returned.
            into: A network of the same sizes, over the gradient buffer.
        """
        parts, joined = self._split(trace)
        gradient = self._perceptron.backward_through(output_gradient, joined, into._perceptron, slice(None))
        pieces = gradient.split_with_sizes([self._width] * len(self._encoders), -1)
        for encoder, target, part, piece in zip(self._encoders, into._encoders, parts, pieces, strict=True):
            own = self._activation.backward_(piece.contiguous(), part[-1])
            encoder.network.backward(own, part, target.network)

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = slice(None)) -> Tensor:
        """Computes the gradient of a scalar loss with respect to the inputs; the weights' gradients are not computed.

        Args:
            output_gradient: As for `backward`.
            trace: What `trace` returned.
            inputs: Which inputs. Encoders that see none of them are skipped.

        Returns:
            [B, inputs], or [C, B, inputs] with the gradient through each member of an ensemble.
        """
        parts, joined = self._split(trace)
        begin, end, _ = inputs.indices(max(encoder.columns.stop for encoder in self._encoders))
        found = output_gradient.new_zeros(*output_gradient.shape[:-1], end - begin)
        for index, (encoder, part) in enumerate(zip(self._encoders, parts, strict=True)):
            first, last = max(begin, encoder.columns.start), min(end, encoder.columns.stop)
            if first >= last:
                continue
            features = slice(index * self._width, (index + 1) * self._width)
            gradient = self._perceptron.input_gradient(output_gradient, joined, features)
            own = self._activation.backward_(gradient, part[-1])
            start = encoder.columns.start
            seen = encoder.network.input_gradient(own, part, slice(first - start, last - start))
            found[..., first - begin : last - begin] = seen
        return found

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the unchanged state [N, 0]."""
        return self.forward(inputs), state

    def unrolled(self, sequences: Sequences | None) -> "CompositeNetwork":
        """Returns itself: rows are independent of each other."""
        return self
