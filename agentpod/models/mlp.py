"""Owns multilayer perceptrons over flat buffers: layout, initialisation, forward pass and hand-written backward pass.

Several critics are one batched perceptron. Networks that begin with convolutions are in agentpod.models.cnn, those that
remember in agentpod.models.gru; which one a policy has is decided in agentpod.models.factory.

All parameters of an agent lie in one buffer and all gradients in another of the same layout, so that publishing,
clipping, optimising and averaging are each one operation on one tensor. The backward pass is written out because
autograd spends more time on a small network than the network itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor, nn

Shapes = Mapping[str, tuple[int, ...]]

HIDDEN_GAIN = math.sqrt(2.0)


def element_count(shapes: Shapes) -> int:
    """Length of a flat buffer that holds tensors of these shapes one after the other."""
    return sum(math.prod(shape) for shape in shapes.values())


def flat_views(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Cuts `flat` [element_count(shapes)] into named views, in the order of `shapes`, without gaps."""
    pieces = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


@dataclass(frozen=True)
class Activation:
    """An elementwise function whose derivative can be told from its output.

    Attributes:
        apply_: Replaces a tensor by the function of it, in place, and returns it.
        backward_: (gradient of the output, output) -> gradient of the input, in the place of the former.
    """

    apply_: Callable[[Tensor], Tensor]
    backward_: Callable[[Tensor, Tensor], Tensor]


def _tanh_(tensor: Tensor) -> Tensor:
    if not tensor.is_cpu:
        return tensor.tanh_()
    # torch's float32 tanh is not vectorised on CPUs: numpy's was measured 10 times faster, to 1 unit in the last place.
    array = tensor.numpy()
    numpy.tanh(array, out=array)
    return tensor


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(_tanh_, lambda gradient, output: gradient.addcmul_(gradient * output, output, value=-1.0)),
    # threshold_backward is one pass; multiplying by a mask was measured 6 times slower.
    "relu": Activation(
        torch.relu_,
        lambda gradient, output: torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient),
    ),
    "elu": Activation(
        lambda tensor: nn.functional.elu(tensor, inplace=True),
        lambda gradient, output: gradient.addcmul_(gradient, output.clamp(max=0.0)),
    ),
}


class Sequences(NamedTuple):
    """How B = T L rows follow each other where a network remembers: row t L + l is step t of lane l."""

    keep: Tensor
    """[T, L, 1] float32: 0 where an episode begins, so that what was remembered is forgotten; 1 elsewhere."""
    state: Tensor
    """[L, S], what is remembered before the first step."""


class Differentiable(Protocol):
    """A function of many parameters and the way back through it.

    trace = network.trace(inputs)
    network.backward(gradient_of(trace[-1]), trace, twin_over_the_gradient_buffer)
    """

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """What `backward` needs, for inputs [B, inputs]; the last are the outputs [B, outputs]."""
        ...

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: Any) -> None:
        """Overwrites the tensors of `into`, a network of the same kind, with the gradient of a scalar loss."""
        ...


class Network(Protocol):
    """What an actor or a critic is: layers over views of a flat buffer, which may remember.

    Whoever acts carries what is remembered from step to step; of most networks that is nothing, [N, 0]:

        outputs, state = network.advance(inputs, state)

    In training the network is asked again for all steps at once, along the sequences in which they were taken:

        along = network.along(sequences)
        trace = along.trace(inputs)

    Attributes:
        state_size: S, numbers that are remembered from one step to the next; 0 = none.
    """

    state_size: int

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws new weights; the gain of the last layer is the caller's."""
        ...

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, outputs] for inputs [B, inputs], with nothing remembered."""
        ...

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: outputs [N, outputs] and the next state [N, S] for inputs [N, inputs] and a state [N, S]."""
        ...

    def unrolled(self, sequences: Sequences | None) -> Differentiable:
        """The network for inputs that follow each other; None: they do not, and nothing is remembered."""
        ...


class FeedForward(Network, Differentiable, Protocol):
    """A network that remembers nothing. An ensemble of C is one network, with outputs [C, B, outputs]."""

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = ...) -> Tensor:
        """The gradient of a scalar loss with respect to those of the inputs that are asked for."""
        ...

    def member(self, index: int) -> "FeedForward":
        """One member of an ensemble by itself, over the same memory."""
        ...


class MultilayerPerceptron:
    """Linear layers with an activation between them: y = W_k h + b_k at the end, h = activation(W x + b) before.

    Holds no memory of its own: weights [out, in] and biases [out] are views that the caller cut from a flat buffer.

    An *ensemble* of C perceptrons of one shape is one batched perceptron: weights [C, out, in], biases [C, out], inputs
    [B, in] that all members see (or [C, B, in], each its own), outputs [C, B, out].
    """

    state_size: int = 0

    def __init__(self, name: str, tensors: Mapping[str, Tensor], activation: str) -> None:
        """Picks its layers out of `tensors` by the names that `shapes(name, ...)` gives.

        Args:
            name: For example "actor".
            tensors: Views of a flat buffer; others than its own are ignored.
            activation: Key of ACTIVATIONS.
        """
        layers = sum(f"{name}.{layer}.weight" in tensors for layer in range(len(tensors)))
        self.weights = [tensors[f"{name}.{layer}.weight"] for layer in range(layers)]
        self.biases = [tensors[f"{name}.{layer}.bias"] for layer in range(layers)]
        self._name, self._activation_name, self._activation = name, activation, ACTIVATIONS[activation]
        self._transposed = [weight.mT for weight in self.weights]
        # Of an ensemble: [C, 1, out], so that a bias spreads over the batch.
        self._rows = [bias.unsqueeze(-2) if bias.dim() > 1 else bias for bias in self.biases]

    def member(self, index: int) -> "MultilayerPerceptron":
        """One member of an ensemble by itself, over the same memory."""
        tensors = {f"{self._name}.{layer}.weight": weight[index] for layer, weight in enumerate(self.weights)}
        tensors |= {f"{self._name}.{layer}.bias": bias[index] for layer, bias in enumerate(self.biases)}
        return MultilayerPerceptron(self._name, tensors, self._activation_name)

    @staticmethod
    def shapes(name: str, sizes: tuple[int, ...], members: int = 0) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of a perceptron.

        Args:
            name: Of the perceptron.
            sizes: Of its layers, input and output included.
            members: C of an ensemble; 0 = a single perceptron.
        """
        leading = (members,) if members else ()
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
            shapes[f"{name}.{layer}.weight"] = (*leading, outputs, inputs)
            shapes[f"{name}.{layer}.bias"] = (*leading, outputs)
        return shapes

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Orthogonal weights (Saxe et al. 2014) and zero biases, each member of an ensemble drawn by itself.

        Hidden layers have gain sqrt 2; the gain of the last layer is the caller's (Andrychowicz et al. 2021, section
        3.2: 0.01 for a policy, so that it starts near uniform; 1 for a value).
        """
        for layer, weight in enumerate(self.weights):
            gain = HIDDEN_GAIN if layer + 1 < len(self.weights) else output_gain
            for member in weight if weight.dim() > 2 else (weight,):
                nn.init.orthogonal_(member, gain, generator=generator)
        for bias in self.biases:
            bias.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, outputs] for inputs [B, inputs]; with a leading [C] of an ensemble."""
        return self.trace(inputs)[-1]

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """The inputs of every layer, then the outputs: what `backward` needs; the last is what `forward` returns."""
        members = self.weights[0].shape[:-2]
        trace = [inputs.expand(*members, *inputs.shape[-2:])]
        for bias, transposed in zip(self._rows[:-1], self._transposed[:-1], strict=True):
            trace.append(self._activation.apply_(_affine(bias, trace[-1], transposed)))
        trace.append(_affine(self._rows[-1], trace[-1], self._transposed[-1]))
        return trace

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss.

        Args:
            output_gradient: [B, outputs] ([C, B, outputs]), of the loss with respect to trace[-1].
            trace: What `trace` returned.
            into: A perceptron of the same sizes, over the gradient buffer.
        """
        self._backward(output_gradient, trace, into)

    def backward_through(
        self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron", inputs: slice
    ) -> Tensor:
        """`backward` and `input_gradient` for the price of the former and one product."""
        return torch.matmul(self._backward(output_gradient, trace, into), self.weights[0][..., inputs])

    def _backward(self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron") -> Tensor:
        """Returns the gradient with respect to the sums of the first layer: [B, units]."""
        gradient = output_gradient
        for layer in reversed(range(len(self.weights))):
            torch.matmul(gradient.mT, trace[layer], out=into.weights[layer])
            torch.sum(gradient, -2, out=into.biases[layer])
            if layer > 0:
                gradient = self._activation.backward_(torch.matmul(gradient, self.weights[layer]), trace[layer])
        return gradient

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = slice(None)) -> Tensor:
        """The gradient of a scalar loss with respect to what went in, and nothing of what the weights would get.

        Args:
            output_gradient: As for `backward`.
            trace: What `trace` returned.
            inputs: Which inputs; those left out cost nothing.

        Returns:
            [B, inputs], or [C, B, inputs] with the part of each member of an ensemble.
        """
        gradient = output_gradient
        for layer in reversed(range(1, len(self.weights))):
            gradient = self._activation.backward_(torch.matmul(gradient, self.weights[layer]), trace[layer])
        return torch.matmul(gradient, self.weights[0][..., inputs])

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs; the state, [N, 0], stays."""
        return self.trace(inputs)[-1], state

    def unrolled(self, sequences: Sequences | None) -> "MultilayerPerceptron":
        """Itself: one row has nothing to do with another."""
        return self


def _affine(bias: Tensor, inputs: Tensor, transposed: Tensor) -> Tensor:
    """The linear map inputs W^T + bias; of an ensemble, each member's."""
    if transposed.dim() == 2:
        return torch.addmm(bias, inputs, transposed)
    return torch.baddbmm(bias, inputs, transposed)
