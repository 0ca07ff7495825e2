"""Tests networks over composite observations against autograd in float64, and what a policy makes of the entries."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agentpod.models.cnn import TORSOS
from agentpod.models.factory import NetworkFactory
from agentpod.models.gru import RecurrentNetwork
from agentpod.models.mlp import FeedForward, Sequences, element_count, flat_views
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import InvalidArgument
from podrace.spaces.entries import Entry, columns, width
from simulators.base import Space

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}
ENTRIES = (
    Entry("position", "vector", (3,)),
    Entry("camera", "bytes", (2, 9, 8)),
    Entry("kind", "one_hot", (), (4,), (0,)),
    Entry("action_mask", "mask", (3,)),
    Entry("lamps", "flags", (2,)),
)
SPACE = Space("composite", (width(ENTRIES),), torch.float32, entries=ENTRIES)
ACTIONS = Space("discrete", (), torch.int64, n=3)
EXTRA, OUTPUTS, BATCH = 2, 3, 5
CASES = list(itertools.product(("none", "small"), ACTIVATIONS, (0, 3)))


def new_network(torso: str, activation: str, members: int) -> tuple[FeedForward, FeedForward, dict[str, Tensor], Any]:
    """Returns a random float64 network, the same network over a gradient buffer, and both networks' tensors by name."""
    factory = NetworkFactory(SPACE, (6, 4), activation, torso)
    shapes = factory.shapes("net", OUTPUTS, extra=EXTRA, members=members)
    flat = torch.randn(element_count(shapes), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.3
    tensors, gradients = flat_views(flat, shapes), flat_views(torch.full_like(flat, math.nan), shapes)
    return factory.make_feedforward("net", tensors), factory.make_feedforward("net", gradients), tensors, gradients


def reference(tensors: dict[str, Tensor], inputs: Tensor, torso: str, activation: str) -> Tensor:
    """Returns the outputs of one member, written without the classes under test."""
    apply, features = ACTIVATIONS[activation], []
    parts = [(entry, place) for entry, place in columns(ENTRIES) if entry.encoding != "mask"]
    for number, (entry, place) in enumerate([*parts, (None, slice(width(ENTRIES), None))]):
        name, x = f"net.encoder.{number}", inputs[:, place]
        if torso != "none" and entry is not None and entry.name == "camera":
            x = x.reshape(-1, *entry.shape)
            for layer, convolution in enumerate(TORSOS[torso]):
                weight, bias = tensors[f"{name}.torso.{layer}.weight"], tensors[f"{name}.torso.{layer}.bias"]
                x = apply(torch.conv2d(x, weight, bias, convolution.stride))
            x = x.flatten(1)
        features.append(apply(x @ tensors[f"{name}.0.weight"].mT + tensors[f"{name}.0.bias"]))
    x = apply(torch.cat(features, 1) @ tensors["net.0.weight"].mT + tensors["net.0.bias"])
    return x @ tensors["net.1.weight"].mT + tensors["net.1.bias"]


@pytest.mark.parametrize(("torso", "activation", "members"), CASES)
def test_gradients_equal_those_of_autograd(torso: str, activation: str, members: int) -> None:
    network, into, tensors, gradients = new_network(torso, activation, members)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH, width(ENTRIES) + EXTRA, dtype=torch.float64, generator=generator).requires_grad_()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    rows = [{name: leaf[index] for name, leaf in leaves.items()} for index in range(members)] or [leaves]
    wanted = torch.stack([reference(one, inputs, torso, activation) for one in rows])
    wanted = wanted if members else wanted[0]
    output_gradient = torch.randn(wanted.shape, dtype=torch.float64, generator=generator)
    everything = torch.autograd.grad((wanted * output_gradient).sum(), [*leaves.values(), inputs])

    seen = inputs.detach()
    trace = network.trace(seen)
    torch.testing.assert_close(trace[-1], wanted.detach())
    torch.testing.assert_close(network.forward(seen), wanted.detach())
    network.backward(output_gradient, trace, into)
    for name, gradient in zip(leaves, everything, strict=False):
        torch.testing.assert_close(gradients[name], gradient, msg=name)
    for part in (slice(None), slice(1, 4), slice(width(ENTRIES), width(ENTRIES) + EXTRA)):
        found = network.input_gradient(output_gradient, network.trace(seen), part)
        torch.testing.assert_close(found.sum(0) if members else found, everything[-1][:, part])
    if members:
        torch.testing.assert_close(network.member(1).forward(seen), wanted[1].detach())


def test_a_recurrent_network_over_entries_has_the_gradient_of_autograd() -> None:
    factory = NetworkFactory(SPACE, (6, 4), "tanh", "none", recurrent_size=3)
    shapes = factory.shapes("net", OUTPUTS)
    flat = torch.randn(element_count(shapes), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.3
    gradient = torch.full_like(flat, math.nan)
    network, into = (factory.make("net", flat_views(one, shapes)) for one in (flat, gradient))
    assert isinstance(network, RecurrentNetwork)
    inputs = torch.randn(4 * 2, width(ENTRIES), dtype=torch.float64)
    sequences = Sequences(torch.ones(4, 2, 1, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64))
    weights = torch.randn(8, OUTPUTS, dtype=torch.float64)
    unrolled = network.unrolled(sequences)
    unrolled.backward(weights, unrolled.trace(inputs), into)
    for place in range(0, len(flat), 7):
        step = torch.zeros_like(flat)
        step[place] = 1e-6
        losses = []
        for moved in (flat + step, flat - step):
            other = factory.make("net", flat_views(moved, shapes)).unrolled(sequences)
            losses.append(float((other.trace(inputs)[-1] * weights).sum()))
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(float(gradient[place]), rel=1e-5, abs=1e-7)


def test_a_single_vector_has_the_network_of_a_plain_observation() -> None:
    entries = (Entry("observation", "vector", (3,)), Entry("action_mask", "mask", (3,)))
    composite = Policy(Space("composite", (6,), torch.float32, entries=entries), ACTIONS, NetworkSpec())
    plain = Policy(Space("continuous", (3,), torch.float32), ACTIONS, NetworkSpec())
    plain.initialize(torch.Generator().manual_seed(0), 1.0)
    composite.actor_flat.copy_(plain.actor_flat)
    mean, variance = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([4.0, 0.1, 1.0])
    plain.set_statistics(mean, variance)
    composite.set_statistics(torch.cat((mean, torch.rand(3))), torch.cat((variance, torch.rand(3))))
    observation = torch.randn(7, 3) * 20.0
    rows = torch.cat((observation, torch.ones(7, 3)), 1)
    torch.testing.assert_close(composite.outputs(rows), plain.outputs(observation))


@pytest.mark.parametrize("normalizes", [True, False])
def test_vectors_are_normalized_bytes_are_scaled_and_other_entries_are_kept(normalizes: bool) -> None:
    policy = Policy(SPACE, ACTIONS, NetworkSpec(normalize_observations=normalizes))
    if normalizes:
        policy.set_statistics(torch.full((width(ENTRIES),), 3.0), torch.full((width(ENTRIES),), 4.0))
    places = {entry.name: place for entry, place in columns(ENTRIES)}
    rows = torch.ones(2, width(ENTRIES))
    rows[:, places["camera"]] = 255.0
    rows[0, places["position"]] = 1e6
    found = policy.normalize(rows)
    vector = torch.tensor([10.0, -1.0]) if normalizes else torch.tensor([1e6, 1.0])
    torch.testing.assert_close(found[:, places["position"]], vector.unsqueeze(1).expand(2, 3))
    for name in ("camera", "kind", "action_mask", "lamps"):
        torch.testing.assert_close(found[:, places[name]], torch.ones_like(found[:, places[name]]))


def test_bytes_and_float_rows_of_one_observation_give_the_same_outputs() -> None:
    entries = (ENTRIES[1], ENTRIES[2])
    spaces = [Space("composite", (width(entries),), dtype, entries=entries) for dtype in (torch.uint8, torch.float32)]
    policies = [Policy(space, ACTIONS, NetworkSpec(torso="small")) for space in spaces]
    policies[0].initialize(torch.Generator().manual_seed(0), 1.0)
    policies[1].load(policies[0].flat)
    rows = torch.randint(0, 256, (4, width(entries)), dtype=torch.uint8)
    assert not policies[0].normalizes
    torch.testing.assert_close(policies[0].outputs(rows), policies[1].outputs(rows.float()))


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (NetworkSpec(hidden_sizes=()), "need a hidden layer"),
        (NetworkSpec(hidden_sizes=(8,), recurrent_size=4), "a second one"),
    ],
)
def test_networks_without_a_layer_for_the_encoders_are_refused(network: NetworkSpec, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Policy(SPACE, ACTIONS, network)


def test_a_torso_needs_an_entry_with_images() -> None:
    entries = (ENTRIES[0],)
    with pytest.raises(InvalidArgument, match="needs an entry with images"):
        Policy(Space("composite", (3,), torch.float32, entries=entries), ACTIONS, NetworkSpec(torso="small"))
