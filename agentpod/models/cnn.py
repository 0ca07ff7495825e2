"""Implements networks for images: convolutions followed by a perceptron, with a hand-written backward pass.

The gradient of a single convolution is torch's own operator. All tensors are views of flat buffers, as in
agentpod.models.mlp.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agentpod.models.mlp import ACTIVATIONS, HIDDEN_GAIN, MultilayerPerceptron, Sequences
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from simulators.base import Space

NO_TORSO = "none"
PIXEL_SCALE = 1.0 / 255.0
FORWARD_ROWS = 1024
"""Images per forward pass where no gradient is needed. It bounds memory: the activations are many times larger than the
images."""


class ConvolutionSpec(NamedTuple):
    """One convolution without padding."""

    channels: int
    """Output channels."""
    kernel: int
    """Height and width of the kernel, in pixels."""
    stride: int
    """Rows, and columns, from one output to the next."""


TORSOS: Mapping[str, tuple[ConvolutionSpec, ...]] = {
    NO_TORSO: (),
    "nature": (ConvolutionSpec(32, 8, 4), ConvolutionSpec(64, 4, 2), ConvolutionSpec(64, 3, 1)),
    "small": (ConvolutionSpec(16, 4, 2), ConvolutionSpec(32, 3, 1)),
}
"""By the name that a NetworkSpec uses. `nature` (Mnih et al. 2015, methods) needs at least 36 x 36 pixels, `small` 8 x
8."""


@dataclass(frozen=True)
class ImageLayout:
    """Describes the memory layout of an image observation."""

    channels: int
    height: int
    width: int
    channels_last: bool
    """Whether an observation is [height, width, channels] instead of [channels, height, width]."""

    @property
    def elements(self) -> int:
        """Elements of one image."""
        return self.channels * self.height * self.width


def image_layout(space: Space, torso: str) -> ImageLayout:
    """Determines the layout of the images of an observation space, for a torso.

    The channels are the first dimension if it is smaller than both others, or the last one if that is.

    Raises:
        InvalidArgument: The observations are not images, their channel dimension is ambiguous, or they are too small
            for the torso.
    """
    shape = list(space.shape)
    if len(shape) != 3 or space.dtype != torch.uint8:
        raise _unsuitable(
            torso, f"needs images of dtype uint8 with three dimensions, but observations are {space.dtype} {shape}"
        )
    if shape[0] < min(shape[1:]):
        pictures = ImageLayout(shape[0], shape[1], shape[2], channels_last=False)
    elif shape[2] < min(shape[:2]):
        pictures = ImageLayout(shape[2], shape[0], shape[1], channels_last=True)
    else:
        raise _unsuitable(
            torso, f"cannot determine the channel dimension of {shape}: it must come first or last and be the smallest"
        )
    if min(feature_shape(pictures, TORSOS[torso])[1:]) < 1:
        raise _unsuitable(torso, f"needs larger images than {pictures.height} x {pictures.width} pixels")
    return pictures


def _unsuitable(torso: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"torso {torso!r} {what}; or set torso = {NO_TORSO!r}", reason=UNSUITABLE_SPACE)


def feature_shape(pictures: ImageLayout, layers: tuple[ConvolutionSpec, ...]) -> tuple[int, int, int]:
    """Computes channels, rows and columns after the last convolution.

    Rows or columns are below 1 if the images are too small.
    """
    channels, height, width = pictures.channels, pictures.height, pictures.width
    for layer in layers:
        channels = layer.channels
        height = (height - layer.kernel) // layer.stride + 1
        width = (width - layer.kernel) // layer.stride + 1
    return channels, height, width


@dataclass(frozen=True)
class _Convolution:
    """A convolution of one network."""

    weight: Tensor
    """[channels, input channels, kernel, kernel]."""
    bias: Tensor
    """[channels]."""
    stride: int

    def apply(self, picture: Tensor) -> Tensor:
        """Maps [B, input channels, h, w] to [B, channels, h', w']."""
        return torch.conv2d(picture, self.weight, self.bias, self.stride)

    def backward(self, gradient: Tensor, picture: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        """Computes the gradients of a scalar loss with respect to the input, the weight and the bias.

        Args:
            gradient: [B, channels, h', w'], of the loss with respect to what `apply` returned.
            picture: [B, input channels, h, w], the input of `apply`.
            wanted: Which of the three gradients to compute.

        Returns:
            The three gradients; those that are not wanted are undefined.
        """
        found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            gradient,
            picture,
            self.weight,
            [len(self.bias)],
            [self.stride, self.stride],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            wanted,
        )
        return found


class ConvolutionalNetwork:
    """Convolutions with an activation after each, followed by a perceptron over their outputs.

    The inputs are [B, pictures.elements + extra]: the elements of the images in the order of the observation, with
    values from 0 to 255 in any dtype, then further inputs (such as an action) that only the perceptron receives. The
    images are divided by 255 here, unless the caller has done so.

    In an *ensemble* of C networks every member has its own convolutions. They are computed one member after another:
    grouped convolutions took 0.7 to 1.5 times as long on a CPU, mostly longer.

    Attributes:
        perceptron: The network after the convolutions.
    """

    state_size: int = 0

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        pictures: ImageLayout,
        layers: tuple[ConvolutionSpec, ...],
        activation: str,
        scale: float = PIXEL_SCALE,
    ) -> None:
        """Picks its layers from `tensors` by the names that `shapes(name, ...)` returns.

        Args:
            name: For example "actor".
            tensors: Views of a flat buffer; other names are ignored.
            pictures: Layout of the images.
            layers: The convolutions.
            activation: Key of ACTIVATIONS, after each convolution and between the layers of the perceptron.
            scale: Factor of the images; 1 where they are scaled already.
        """
        self._scale = scale
        self.perceptron = MultilayerPerceptron(name, tensors, activation)
        self._name, self._pictures, self._layers = name, pictures, layers
        self._activation_name, self._activation = activation, ACTIVATIONS[activation]
        self._weights = [tensors[f"{name}.torso.{index}.weight"] for index in range(len(layers))]
        self._biases = [tensors[f"{name}.torso.{index}.bias"] for index in range(len(layers))]
        self._is_ensemble = self._biases[0].dim() > 1
        members = len(self._biases[0]) if self._is_ensemble else 1
        self._filters = [[self._filter(index, member) for index in range(len(layers))] for member in range(members)]
        self._features = math.prod(feature_shape(pictures, layers))

    def _filter(self, index: int, member: int) -> _Convolution:
        weight, bias = self._weights[index], self._biases[index]
        if self._is_ensemble:
            weight, bias = weight[member], bias[member]
        return _Convolution(weight, bias, self._layers[index].stride)

    @staticmethod
    def shapes(
        name: str,
        pictures: ImageLayout,
        layers: tuple[ConvolutionSpec, ...],
        sizes: tuple[int, ...],
        *,
        extra: int = 0,
        members: int = 0,
    ) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the tensors of such a network.

        Args:
            name: Of the network.
            pictures: Layout of the images.
            layers: The convolutions.
            sizes: Units of each layer of the perceptron after its inputs, the output layer included.
            extra: Number of inputs that only the perceptron receives.
            members: C of an ensemble; 0 = a single network.
        """
        leading = (members,) if members else ()
        shapes: dict[str, tuple[int, ...]] = {}
        before = pictures.channels
        for index, layer in enumerate(layers):
            shapes[f"{name}.torso.{index}.weight"] = (*leading, layer.channels, before, layer.kernel, layer.kernel)
            shapes[f"{name}.torso.{index}.bias"] = (*leading, layer.channels)
            before = layer.channels
        features = math.prod(feature_shape(pictures, layers))
        return shapes | MultilayerPerceptron.shapes(name, (features + extra, *sizes), members)

    def member(self, index: int) -> "ConvolutionalNetwork":
        """Returns one member of an ensemble as a network over the same memory."""
        name = self._name
        tensors = {f"{name}.torso.{layer}.weight": weight[index] for layer, weight in enumerate(self._weights)}
        tensors |= {f"{name}.torso.{layer}.bias": bias[index] for layer, bias in enumerate(self._biases)}
        tensors |= {f"{name}.{layer}.weight": weight[index] for layer, weight in enumerate(self.perceptron.weights)}
        tensors |= {f"{name}.{layer}.bias": bias[index] for layer, bias in enumerate(self.perceptron.biases)}
        return ConvolutionalNetwork(name, tensors, self._pictures, self._layers, self._activation_name, self._scale)

    def initialize(self, generator: torch.Generator, output_gain: float) -> None:
        """Draws orthogonal weights, with each filter of a convolution as a row, and sets biases to 0."""
        for filters in self._filters:
            for convolution in filters:
                nn.init.orthogonal_(convolution.weight, HIDDEN_GAIN, generator=generator)
                convolution.bias.zero_()
        self.perceptron.initialize(generator, output_gain)

    def forward(self, inputs: Tensor) -> Tensor:
        """Computes outputs [B, outputs] for inputs [B, elements + extra]; an ensemble adds a leading [C]."""
        if len(inputs) <= FORWARD_ROWS:
            return self.trace(inputs)[-1]
        return torch.cat([self.trace(piece)[-1] for piece in torch.split(inputs, FORWARD_ROWS)], -2)

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Returns the images, the outputs of each convolution (member by member), then the perceptron's trace."""
        trace = [self._picture(inputs[:, : self._pictures.elements])]
        found = []
        for filters in self._filters:
            picture = trace[0]
            for convolution in filters:
                picture = self._activation.apply_(convolution.apply(picture))
                trace.append(picture)
            found.append(picture.flatten(1))
        features = torch.stack(found) if self._is_ensemble else found[0]
        extra = inputs[:, self._pictures.elements :]
        if extra.shape[1]:
            features = torch.cat((features, extra.expand(*features.shape[:-1], -1)), -1)
        return trace + self.perceptron.trace(features)

    def _picture(self, elements: Tensor) -> Tensor:
        """Converts [B, elements] to images [B, channels, height, width] with values from 0 to 1.

        The channels are innermost in memory: convolutions on a CPU were measured to be 1.2 to 1.8 times as fast that
        way.
        """
        pictures = self._pictures
        if pictures.channels_last:
            picture = elements.view(-1, pictures.height, pictures.width, pictures.channels).permute(0, 3, 1, 2)
        else:
            picture = elements.view(-1, pictures.channels, pictures.height, pictures.width)
        return picture.to(dtype=self._weights[0].dtype, memory_format=torch.channels_last) * self._scale

    def _split(self, trace: list[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Splits a trace into the activations of each member's convolutions, image first, and the perceptron's."""
        depth = len(self._layers)
        ends = [1 + depth * (member + 1) for member in range(len(self._filters))]
        return [[trace[0], *trace[end - depth : end]] for end in ends], trace[ends[-1] :]

    def backward(self, output_gradient: Tensor, trace: list[Tensor], into: "ConvolutionalNetwork") -> None:
        """Overwrites the tensors of `into` with the gradient of a scalar loss.

        Args:
            output_gradient: [B, outputs] or [C, B, outputs], of the loss with respect to trace[-1].
            trace: What `trace` returned.
            into: A network of the same sizes, over the gradient buffer.
        """
        seen, perceptron_trace = self._split(trace)
        gradient = self.perceptron.backward_through(
            output_gradient, perceptron_trace, into.perceptron, slice(0, self._features)
        )
        for member, pictures in enumerate(seen):
            picture_gradient = (gradient[member] if self._is_ensemble else gradient).view_as(pictures[-1])
            for index in reversed(range(len(self._layers))):
                picture_gradient = self._activation.backward_(picture_gradient, pictures[index + 1])
                picture_gradient, weight_gradient, bias_gradient = self._filters[member][index].backward(
                    picture_gradient, pictures[index], (index > 0, True, True)
                )
                into._filters[member][index].weight.copy_(weight_gradient)
                into._filters[member][index].bias.copy_(bias_gradient)

    def input_gradient(self, output_gradient: Tensor, trace: list[Tensor], inputs: slice = slice(None)) -> Tensor:
        """Computes the gradient of a scalar loss with respect to the inputs; the weights' gradients are not computed.

        Args:
            output_gradient: As for `backward`.
            trace: What `trace` returned.
            inputs: Which inputs. If all of them follow the images, the convolutions are skipped.

        Returns:
            [B, inputs], or [C, B, inputs] with the gradient through each member of an ensemble.
        """
        seen, perceptron_trace = self._split(trace)
        elements, features = self._pictures.elements, self._features
        extra = perceptron_trace[0].shape[-1] - features
        begin, end, _ = inputs.indices(elements + extra)
        if begin >= elements:
            beyond = slice(features + begin - elements, features + end - elements)
            return self.perceptron.input_gradient(output_gradient, perceptron_trace, beyond)
        gradient = self.perceptron.input_gradient(output_gradient, perceptron_trace)
        parts = gradient if self._is_ensemble else gradient.unsqueeze(0)
        image_gradient = torch.stack(
            [self._picture_gradient(member, parts[member, :, :features], seen[member]) for member in range(len(seen))]
        )
        image_gradient = image_gradient if self._is_ensemble else image_gradient.squeeze(0)
        return torch.cat((image_gradient, gradient[..., features:]), -1)[..., begin:end]

    def _picture_gradient(self, member: int, gradient: Tensor, pictures: list[Tensor]) -> Tensor:
        """Propagates the gradient with respect to one member's features to its inputs: [B, elements]."""
        gradient = gradient.reshape(pictures[-1].shape)
        for index in reversed(range(len(self._layers))):
            gradient = self._activation.backward_(gradient, pictures[index + 1])
            gradient = self._filters[member][index].backward(gradient, pictures[index], (True, False, False))[0]
        in_order = gradient.permute(0, 2, 3, 1) if self._pictures.channels_last else gradient
        return in_order.reshape(len(gradient), -1) * self._scale

    def advance(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs and the unchanged state [N, 0]."""
        return self.forward(inputs), state

    def unrolled(self, sequences: Sequences | None) -> "ConvolutionalNetwork":
        """Returns itself: rows are independent of each other."""
        return self
