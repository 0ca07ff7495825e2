"""Tests perceptrons over flat buffers against torch.nn and autograd in float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from agentpod.models.mlp import ACTIVATIONS, MultilayerPerceptron, element_count, flat_views

SIZES = (5, 7, 6, 3)
MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def perceptron(activation: str, flat: Tensor) -> MultilayerPerceptron:
    return MultilayerPerceptron("net", flat_views(flat, MultilayerPerceptron.shapes("net", SIZES)), activation)


def random_flat(seed: int = 0) -> Tensor:
    count = element_count(MultilayerPerceptron.shapes("net", SIZES))
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 0.5


def reference(activation: str, network: MultilayerPerceptron) -> nn.Sequential:
    layers: list[nn.Module] = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        linear.weight.data.copy_(weight)
        linear.bias.data.copy_(bias)
        layers += [linear, MODULES[activation]()]
    return nn.Sequential(*layers[:-1])


def test_views_cover_the_buffer_in_order_without_gaps() -> None:
    shapes = {"a": (2, 3), "b": (4,), "c": ()}
    flat = torch.arange(float(element_count(shapes)))
    views = flat_views(flat, shapes)
    assert torch.equal(torch.cat([view.flatten() for view in views.values()]), flat)
    views["b"].zero_()
    assert flat[6:10].tolist() == [0.0] * 4


def test_every_activation_has_a_reference() -> None:
    assert MODULES.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_are_those_of_torch(activation: str) -> None:
    network = perceptron(activation, random_flat())
    inputs = torch.randn(11, SIZES[0], dtype=torch.float64)
    expected = reference(activation, network)(inputs).detach()
    torch.testing.assert_close(network.forward(inputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_autograd(activation: str) -> None:
    network, gradient_flat = perceptron(activation, random_flat()), torch.full_like(random_flat(), math.nan)
    inputs, output_gradient = torch.randn(11, SIZES[0], dtype=torch.float64), torch.randn(11, 3, dtype=torch.float64)
    network.backward(output_gradient, network.trace(inputs), perceptron(activation, gradient_flat))
    module = reference(activation, network)
    module(inputs).backward(output_gradient)
    expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradient_flat, expected, rtol=1e-12, atol=1e-12)


def test_inputs_are_not_modified() -> None:
    network, inputs = perceptron("tanh", random_flat()), torch.randn(4, SIZES[0], dtype=torch.float64)
    before = inputs.clone()
    network.forward(inputs)
    assert torch.equal(inputs, before)


def test_tanh_is_exact_to_rounding_in_single_precision() -> None:
    inputs = torch.linspace(-12.0, 12.0, 10_001)
    outputs = ACTIVATIONS["tanh"].apply_(inputs.clone())
    torch.testing.assert_close(outputs.double(), inputs.double().tanh(), rtol=0.0, atol=1.2e-7)


def test_layers_are_initialized_orthogonally_with_their_gains() -> None:
    network = perceptron("tanh", random_flat())
    network.initialize(torch.Generator().manual_seed(1), output_gain=0.01)
    for weight, gain in zip(network.weights, (math.sqrt(2), math.sqrt(2), 0.01), strict=True):
        rows = weight if weight.shape[0] <= weight.shape[1] else weight.t()
        identity = torch.eye(len(rows), dtype=torch.float64)
        torch.testing.assert_close(rows @ rows.t(), identity * gain**2, rtol=0.0, atol=1e-9)
    assert all(bias.eq(0).all() for bias in network.biases)


def test_the_seed_determines_the_weights() -> None:
    flats = []
    for seed in (1, 1, 2):
        flat = random_flat(seed=seed + 10)
        perceptron("tanh", flat).initialize(torch.Generator().manual_seed(seed), output_gain=1.0)
        flats.append(flat)
    assert torch.equal(flats[0], flats[1])
    assert not torch.equal(flats[0], flats[2])
