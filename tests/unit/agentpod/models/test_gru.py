"""Tests gated recurrent units and recurrent networks against torch.nn.GRUCell and autograd in float64."""

import math

import pytest
import torch
from exactness import one_thread as one_thread
from recurrent_references import assert_close, leaves, random, reference, remembered

from agentpod.models.factory import NetworkFactory
from agentpod.models.gru import GatedRecurrentUnit, RecurrentNetwork
from agentpod.models.mlp import Sequences, element_count, flat_views
from agentpod.models.policy import NetworkSpec
from podrace.errors import InvalidArgument
from simulators.base import Space

STEPS, LANES, INPUTS, SIZE = 7, 3, 5, 4
SCREEN = Space("continuous", (1, 9, 9), torch.uint8)


def sequences() -> Sequences:
    """Returns three lanes: one without an episode boundary, one with two, one with an episode of a single step."""
    keep = torch.ones(STEPS, LANES, 1, dtype=torch.float64)
    keep[2, 1], keep[5, 1], keep[0, 2], keep[1, 2] = 0, 0, 0, 0
    return Sequences(keep, random(LANES, SIZE, seed=3))


def test_a_unit_and_its_gradients_equal_those_of_torch() -> None:
    shapes = GatedRecurrentUnit.shapes("unit", INPUTS, SIZE)
    flat = 0.5 * random(element_count(shapes))
    gradient = torch.full_like(flat, math.nan)
    unit, twin = (GatedRecurrentUnit("unit", flat_views(buffer, shapes)) for buffer in (flat, gradient))
    along, parameters = sequences(), leaves(flat_views(flat, shapes))
    inputs = random(STEPS * LANES, INPUTS, seed=1).requires_grad_()
    expected = remembered(parameters, "unit", inputs.view(STEPS, LANES, INPUTS), along)
    direction = random(STEPS * LANES, SIZE, seed=2)
    found = torch.autograd.grad((expected.flatten(0, 1) * direction).sum(), [inputs, *parameters.values()])
    with torch.no_grad():
        trace = unit.trace(inputs, along)
        assert_close(trace[-1], expected.flatten(0, 1))
        assert_close(unit.backward(direction, trace, along, twin), found[0])
        for name, gradient_of in zip(parameters, found[1:], strict=True):
            assert_close(flat_views(gradient, shapes)[name], gradient_of)


@pytest.mark.parametrize("torso", ["none", "small"])
def test_an_unrolled_network_and_its_gradients_equal_those_of_torch(torso: str) -> None:
    space = SCREEN if torso == "small" else Space("continuous", (INPUTS,), torch.float32)
    plan = NetworkFactory(space, (6,), "tanh", torso, SIZE)
    shapes = plan.shapes("net", 2)
    flat = 0.4 * random(element_count(shapes))
    gradient = torch.full_like(flat, math.nan)
    network, twin = (plan.make("net", flat_views(buffer, shapes)) for buffer in (flat, gradient))
    inputs = random(STEPS * LANES, math.prod(space.shape), seed=1)
    inputs = inputs.abs().mul(50).floor() if torso == "small" else inputs
    along, parameters = sequences(), leaves(flat_views(flat, shapes))
    expected = reference(plan, parameters, inputs, along)
    direction = random(STEPS * LANES, 2, seed=2)
    found = torch.autograd.grad((expected * direction).sum(), list(parameters.values()))
    along = network.unrolled(along)
    trace = along.trace(inputs)
    assert_close(trace[-1], expected)
    along.backward(direction, trace, twin)
    for name, gradient_of in zip(parameters, found, strict=True):
        assert_close(flat_views(gradient, shapes)[name], gradient_of)


def random_network(seed: int = 0) -> RecurrentNetwork:
    plan = NetworkFactory(Space("continuous", (INPUTS,), torch.float32), (6,), "tanh", recurrent_size=SIZE)
    shapes = plan.shapes("net", 2)
    network = plan.make("net", flat_views(random(element_count(shapes), seed=seed), shapes))
    assert isinstance(network, RecurrentNetwork)
    return network


def test_step_by_step_equals_unrolled() -> None:
    network, along = random_network(), sequences()
    inputs = random(STEPS, LANES, INPUTS, seed=1)
    outputs, states = network.unroll(inputs.flatten(0, 1), along)
    assert_close(network.unrolled(along).trace(inputs.flatten(0, 1))[-1], outputs)
    state = along.state
    for t in range(STEPS):
        said, state = network.advance(inputs[t], state * along.keep[t])
        assert_close(said, outputs.view(STEPS, LANES, -1)[t])
        assert_close(state, states[t])


def test_forward_starts_from_a_zero_state() -> None:
    network, inputs = random_network(), random(LANES, INPUTS, seed=1)
    expected = network.advance(inputs, torch.zeros(LANES, SIZE, dtype=torch.float64))[0]
    assert torch.equal(network.forward(inputs), expected)
    with pytest.raises(ValueError, match="trained over sequences"):
        network.unrolled(None)


def test_every_gate_is_initialized_orthogonally() -> None:
    shapes = GatedRecurrentUnit.shapes("unit", 8, SIZE)
    tensors = flat_views(torch.full((element_count(shapes),), 7.0, dtype=torch.float64), shapes)
    GatedRecurrentUnit("unit", tensors).initialize(torch.Generator().manual_seed(0))
    for name in ("unit.input_weight", "unit.state_weight"):
        for gate in tensors[name].chunk(3):
            assert_close(gate @ gate.t(), torch.eye(SIZE, dtype=torch.float64))
    assert not tensors["unit.input_bias"].any()
    assert not tensors["unit.state_bias"].any()


def test_a_recurrent_network_needs_a_hidden_layer() -> None:
    with pytest.raises(InvalidArgument, match="recurrent_size 8 needs a hidden layer before it"):
        NetworkSpec((), recurrent_size=8)
