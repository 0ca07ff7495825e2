"""Implements multilayer perceptrons over flat buffers, with a hand-written backward pass.

An ensemble of critics is one batched perceptron. Convolutional networks are in agentpod.models.cnn, recurrent ones in
agentpod.models.gru; agentpod.models.factory selects between them.

All parameters of an agent are in one buffer, and all gradients in another with the same layout. Publishing, gradient
clipping, optimizer steps and averaging are therefore each one operation on one tensor. The backward pass is written out
because for small networks the overhead of autograd exceeds the computation.
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
    """Returns the length of a flat buffer that holds tensors of these shapes one after another."""
    return sum(math.prod(shape) for shape in shapes.values())


def flat_views(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Splits `flat` [element_count(shapes)] into named views, in the order of `shapes`, without gaps."""
    pieces = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


@dataclass(frozen=True)
class Activation:
    """An elementwise function whose derivative is computed from its output.

    Attributes:
        apply_: Applies the function in place and returns the tensor.
        backward_: (gradient of the output, output) -> gradient of the input, written over the former.
    """

    apply_: Callable[[Tensor], Tensor]
    backward_: Callable[[Tensor, Tensor], Tensor]


def _tanh_(tensor: Tensor) -> Tensor:
    if not tensor.is_cpu or torch._C._len_torch_dispatch_stack():
        # A dispatch mode, which counts or records operations, does not see numpy.
        return tensor.tanh_()
    # torch's float32 tanh is not vectorized on CPUs: numpy's was measured 10 times faster, accurate to 1 ulp.
    array = tensor.numpy()
    numpy.tanh(array, out=array)
    return tensor


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(_tanh_, lambda gradient, output: gradient.addcmul_(gradient * output, output, value=-1.0)),
    # threshold_backward is a single pass; multiplying by a mask was measured to be 6 times slower.
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
    """How the B = T L rows of a batch follow each other in time: row t L + l is step t of lane l."""

    keep: Tensor
    """[T, L, 1] float32: 0 where an episode begins, which resets the recurrent state; 1 elsewhere."""
    state: Tensor
    """[L, S], recurrent state before the first step."""


class Differentiable(Protocol):
    """A function of its parameters with an explicit backward pass.

    trace = network.trace(inputs)
    network.backward(gradient_of(trace[-1]), trace, same_network_over_the_gradient_buffer)
    """

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the activations that `backward` needs, for inputs [B, inputs]; the last is [B, outputs]."""
        ...

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: Any) -> None:
        """Overwrites the tensors of `into`, a network of the same kind, with the gradient of a scalar loss."""
        ...


class Network(Protocol):
    """The network of an actor or a critic, over views of a flat buffer; it may be recurrent.

    While acting, the caller carries the recurrent state from step to step; feed-forward networks have an empty state
    [N, 0]:

        outputs, state = network.advance(inputs, state)

    In training, all steps are computed at once, over the sequences in which they were taken:

        unrolled = network.unrolled(sequences)
        trace = unrolled.trace(inputs)

    Attributes:
        state_size: S, size of the recurrent state of one lane; 0 = none.
    """

    state_size: int

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws new weights; `output_gain` scales those of the last layer."""
        ...

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] for inputs [B, inputs], from a zero recurrent state."""
        ...

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Computes one step: outputs [N, outputs] and next state [N, S] from inputs [N, inputs] and state [N, S]."""
        ...

    def unrolled(self, sequences: Sequences | None) -> Differentiable:
        """Returns the network over a batch of sequences, or over independent rows if None."""
        ...


class FeedForward(Network, Differentiable, Protocol):
    """A network without recurrent state. An ensemble of C is one network with outputs [C, B, outputs]."""

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = ...) -> Tensor:
        """Computes the gradient of a scalar loss with respect to the selected inputs."""
        ...

    def member(self, index: int) -> "FeedForward":
        """Returns one member of an ensemble as a network over the same memory."""
        ...


class MultilayerPerceptron:
    """Linear layers with an activation between them: h = activation(W x + b), and a linear last layer y = W h + b.

    It allocates no memory: weights [out, in] and biases [out] are views of the caller's flat buffer.

    An *ensemble* of C perceptrons of the same shape is one batched perceptron: weights [C, out, in], biases [C, out],
    inputs [B, in] shared by all members (or [C, B, in], one for each), outputs [C, B, out].
    """

    state_size: int = 0

    def __init__(self, name: str, tensors: Mapping[str, Tensor], activation: str) -> None:
        """Picks its layers from `tensors` by the names that `shapes(name, ...)` returns.

        Args:
            name: For example "actor".
            tensors: Views of a flat buffer; other names are ignored.
            activation: Key of ACTIVATIONS.
        """
        layers = sum(f"{name}.{layer}.weight" in tensors for layer in range(len(tensors)))
        self.weights = [tensors[f"{name}.{layer}.weight"] for layer in range(layers)]
        self.biases = [tensors[f"{name}.{layer}.bias"] for layer in range(layers)]
        self._name, self._activation_name, self._activation = name, activation, ACTIVATIONS[activation]
        self._transposed = [weight.mT for weight in self.weights]
        # In an ensemble [C, 1, out], so that biases broadcast over the batch.
        self._rows = [bias.unsqueeze(-2) if bias.dim() > 1 else bias for bias in self.biases]

    def member(self, index: int) -> "MultilayerPerceptron":
        """Returns one member of an ensemble as a network over the same memory."""
        tensors = {f"{self._name}.{layer}.weight": weight[index] for layer, weight in enumerate(self.weights)}
        tensors |= {f"{self._name}.{layer}.bias": bias[index] for layer, bias in enumerate(self.biases)}
        return MultilayerPerceptron(self._name, tensors, self._activation_name)

    @staticmethod
    def shapes(name: str, sizes: tuple[int, ...], members: int = 0) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the tensors of a perceptron.

        Args:
            name: Of the perceptron.
            sizes: Units of each layer, input and output included.
            members: C of an ensemble; 0 = a single perceptron.
        """
        leading = (members,) if members else ()
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
            shapes[f"{name}.{layer}.weight"] = (*leading, outputs, inputs)
            shapes[f"{name}.{layer}.bias"] = (*leading, outputs)
        return shapes

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws orthogonal weights (Saxe et al. 2014), separately for each member of an ensemble, and sets biases to 0.

        Hidden layers have gain sqrt 2. `output_gain` is the gain of the last layer (Andrychowicz et al. 2021, section
        3.2: 0.01 for a policy, so that it starts near uniform; 1 for a value).
        """
        for layer, weight in enumerate(self.weights):
            gain = HIDDEN_GAIN if layer + 1 < len(self.weights) else output_gain
            for member in weight if weight.dim() > 2 else (weight,):
                nn.init.orthogonal_(member, gain, generator=generator)
        for bias in self.biases:
            bias.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] for inputs [B, inputs]; an ensemble adds a leading [C]."""
        return self.trace(inputs)[-1]

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the inputs of every layer, then the outputs; see Differentiable.trace."""
        members = self.weights[0].shape[:-2]
        trace = [inputs.expand(*members, *inputs.shape[-2:])]
        for bias, transposed in zip(self._rows[:-1], self._transposed[:-1], strict=True):
            trace.append(self._activation.apply_(_affine(bias, trace[-1], transposed)))
        trace.append(_affine(self._rows[-1], trace[-1], self._transposed[-1]))
        return trace

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss.

        Args:
            output_gradient: [B, outputs] or [C, B, outputs], of the loss with respect to trace[-1].
            trace: What `trace` returned.
            into: A perceptron of the same sizes, over the gradient buffer.
        """
        self._backward(output_gradient, trace, into)

    def backward_through(
        self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron", inputs: slice
    ) -> Tensor:
        """Combines `backward` and `input_gradient`, at the cost of the former plus one matrix product."""
        return torch.matmul(self._backward(output_gradient, trace, into), self.weights[0][..., inputs])

    def _backward(self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron") -> Tensor:
        """As `backward`; returns the gradient with respect to the first layer before its activation: [B, units]."""
        gradient = output_gradient
        for layer in reversed(range(len(self.weights))):
            torch.matmul(gradient.mT, trace[layer], out=into.weights[layer])
            torch.sum(gradient, -2, out=into.biases[layer])
            if layer > 0:
                gradient = self._activation.backward_(torch.matmul(gradient, self.weights[layer]), trace[layer])
        return gradient

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = slice(None)) -> Tensor:
        """Computes the gradient of a scalar loss with respect to the inputs; the weights' gradients are not computed.

        Args:
            output_gradient: As for `backward`.
            trace: What `trace` returned.
            inputs: Which inputs; the others cost nothing.

        Returns:
            [B, inputs], or [C, B, inputs] with the gradient through each member of an ensemble.
        """
        gradient = output_gradient
        for layer in reversed(range(1, len(self.weights))):
            gradient = self._activation.backward_(torch.matmul(gradient, self.weights[layer]), trace[layer])
        return torch.matmul(gradient, self.weights[0][..., inputs])

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the unchanged state [N, 0]."""
        return self.trace(inputs)[-1], state

    def unrolled(self, sequences: Sequences | None) -> "MultilayerPerceptron":
        """Returns itself: rows are independent of each other."""
        return self


def _affine(bias: Tensor, inputs: Tensor, transposed: Tensor) -> Tensor:
    """Computes inputs W^T + bias, for each member of an ensemble."""
    if transposed.dim() == 2:
        return torch.addmm(bias, inputs, transposed)
    return torch.baddbmm(bias, inputs, transposed)
