"""Owns multilayer perceptrons over flat buffers: layout, initialisation, forward pass and hand-written backward pass.

All parameters of an agent lie in one buffer and all gradients in another of the same layout, so that publishing,
clipping, optimising and averaging are each one operation on one tensor. The backward pass is written out because
autograd spends more time on a small network than the network itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

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
    "relu": Activation(torch.relu_, lambda gradient, output: gradient.mul_(output > 0)),
    "elu": Activation(
        lambda tensor: nn.functional.elu(tensor, inplace=True),
        lambda gradient, output: gradient.addcmul_(gradient, output.clamp(max=0.0)),
    ),
}


class MultilayerPerceptron:
    """Linear layers with an activation between them: y = W_k h + b_k at the end, h = activation(W x + b) before.

    Holds no memory of its own: weights [out, in] and biases [out] are views that the caller cut from a flat buffer.
    """

    def __init__(self, name: str, tensors: Mapping[str, Tensor], activation: str) -> None:
        """Picks its layers out of `tensors` by the names that `shapes(name, ...)` gives.

        Args:
            name: For example "actor".
            tensors: Views of a flat buffer; others than its own are ignored.
            activation: Key of ACTIVATIONS.
        """
        layers = sum(key.startswith(f"{name}.") for key in tensors) // 2
        self.weights = [tensors[f"{name}.{layer}.weight"] for layer in range(layers)]
        self.biases = [tensors[f"{name}.{layer}.bias"] for layer in range(layers)]
        self._activation = ACTIVATIONS[activation]
        self._transposed = [weight.t() for weight in self.weights]

    @staticmethod
    def shapes(name: str, sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of a perceptron with layers of these sizes, input and output included."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
            shapes[f"{name}.{layer}.weight"] = (outputs, inputs)
            shapes[f"{name}.{layer}.bias"] = (outputs,)
        return shapes

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Orthogonal weights (Saxe et al. 2014) and zero biases.

        Hidden layers have gain sqrt 2; the gain of the last layer is the caller's (Andrychowicz et al. 2021, section
        3.2: 0.01 for a policy, so that it starts near uniform; 1 for a value).
        """
        for layer, weight in enumerate(self.weights):
            gain = HIDDEN_GAIN if layer + 1 < len(self.weights) else output_gain
            nn.init.orthogonal_(weight, gain, generator=generator)
        for bias in self.biases:
            bias.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, outputs] for inputs [B, inputs]."""
        return self.trace(inputs)[-1]

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """The inputs of every layer, then the outputs: what `backward` needs; the last is what `forward` returns."""
        trace = [inputs]
        for bias, transposed in zip(self.biases[:-1], self._transposed[:-1], strict=True):
            trace.append(self._activation.apply_(torch.addmm(bias, trace[-1], transposed)))
        trace.append(torch.addmm(self.biases[-1], trace[-1], self._transposed[-1]))
        return trace

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "MultilayerPerceptron") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss.

        Args:
            output_gradient: [B, outputs], of the loss with respect to trace[-1].
            trace: What `trace` returned.
            into: A perceptron of the same sizes, over the gradient buffer.
        """
        gradient = output_gradient
        for layer in reversed(range(len(self.weights))):
            torch.mm(gradient.t(), trace[layer], out=into.weights[layer])
            torch.sum(gradient, 0, out=into.biases[layer])
            if layer > 0:
                gradient = self._activation.backward_(torch.mm(gradient, self.weights[layer]), trace[layer])
